// One thread for work that is too small to share.
#pragma once

#include <cstdint>

namespace kvc {

// While alive, torch computes on the calling thread alone if a layer's work is below what waking and
// joining threads costs.
class ThreadScope {
 public:
  explicit ThreadScope(std::int64_t multiplications_per_layer);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int restored_ = 0;  // 0: nothing was changed
};

}  // namespace kvc
