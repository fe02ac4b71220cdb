#include "tests/bench/huge_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace kvc {

std::shared_ptr<std::uint8_t> huge_memory(std::size_t bytes, std::uint8_t value) {
  constexpr std::size_t kHugePage = std::size_t{1} << 21;
  const std::size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, whole);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
#ifdef MADV_HUGEPAGE
  madvise(memory, whole, MADV_HUGEPAGE);
#endif
  auto* first = static_cast<std::uint8_t*>(memory);
  std::fill_n(first, bytes, value);
  return {first, [](std::uint8_t* kept) { std::free(kept); }};
}

}  // namespace kvc
