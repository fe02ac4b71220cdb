// The threads of a pass, by its work and by who else needs the cores.
#pragma once

#include <cstdint>
#include <optional>

#include "model/parallel.h"

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

// While alive, torch leaves cores to other work that takes them (cores_of_others). A step of generation has some hundred short
// loops, and each ends with its slowest thread: one on a core that it shares takes twice as long as the others. Results stay
// those of all threads.
class SharedCores {
 public:
  SharedCores();

 private:
  std::optional<FewerThreads> fewer_;
};

}  // namespace kvc
