// One thread for work that is too small for several.
#pragma once

#include <cstdint>

namespace kvc {

// While alive, torch uses only the calling thread if a layer's work costs less than waking and
// joining threads.
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
