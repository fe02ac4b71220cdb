// Prefetching of memory in kernels.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvc {

// Heads are read one after the other, so every tile is read in strides, which hardware predicts badly. A
// kernel therefore prefetches the next tile in order, a little with every step of this one, into the
// second-level cache, because the first is full of data that this tile's heads share.
class ReadAhead {
 public:
  static constexpr std::int64_t kLine = 64;

  ReadAhead() = default;
  ReadAhead(const void* from, std::int64_t bytes)
      : next_(static_cast<const char*>(from)), end_(next_ + bytes) {}
  // One stretch and, for lines(), then another one.
  ReadAhead(const ReadAhead& one, const ReadAhead& other)
      : next_(one.next_), end_(one.end_), then_(other.next_), then_end_(other.end_) {}

  void fetch(std::int64_t bytes) {
    const char* stop = next_ + std::min<std::int64_t>(bytes, end_ - next_);
    for (; next_ < stop; next_ += kLine) {
#if defined(__GNUC__) || defined(__clang__)
      __builtin_prefetch(next_, /*to write=*/0, /*level 2=*/2);
#endif
    }
  }
  // The next `count` lines, for loops that fetch one per step without a check: lines behind the last one do no
  // harm.
  const char* lines(std::int64_t count) {
    if (next_ >= end_) {
      next_ = then_;
      end_ = then_end_;
      then_ = then_end_;
    }
    const char* from = next_;
    next_ += next_ < end_ ? count * kLine : 0;
    return from;
  }

 private:
  static constexpr char kNothing = 0;
  const char* next_ = &kNothing;
  const char* end_ = next_;
  const char* then_ = next_;
  const char* then_end_ = next_;
};

}  // namespace kvc
