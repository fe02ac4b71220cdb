// Memory that a kernel asks for before it needs it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvc {

// Heads are read one after the other, so every tile is read in strides: what hardware foresees badly. A
// kernel therefore fetches the next tile in order, a little with every step of this one; into the second
// level of caches, because the first is full of what this tile's heads share.
class ReadAhead {
 public:
  ReadAhead() = default;
  ReadAhead(const void* from, std::int64_t bytes)
      : next_(static_cast<const char*>(from)), end_(next_ + bytes) {}

  void fetch(std::int64_t bytes) {
    const char* stop = next_ + std::min<std::int64_t>(bytes, end_ - next_);
    for (; next_ < stop; next_ += kLine) {
#if defined(__GNUC__) || defined(__clang__)
      __builtin_prefetch(next_, /*to write=*/0, /*level 2=*/2);
#endif
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  const char* next_ = nullptr;
  const char* end_ = nullptr;
};

}  // namespace kvc
