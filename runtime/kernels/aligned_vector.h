// Vectors that begin at a cache line: 64-byte loads that cross lines take two accesses.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace kvc {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kLine));
  }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, kLine); }
  bool operator==(const LineAllocator&) const = default;
};

template <class T>
using AlignedVector = std::vector<T, LineAllocator<T>>;

}  // namespace kvc
