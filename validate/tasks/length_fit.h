// How prompts get their length: a task is asked for ever larger samples, in a unit of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>

#include "validate/tasks/task.h"

namespace kvc {

struct SizeRange {
  std::size_t least = 0;
  std::size_t most = std::numeric_limits<std::size_t>::max();  // there is no more to put in
  bool often_all = false;                                      // most fits as a rule: tried first
};

// A sample of some size, in words, sentences, documents, ... The random numbers are the same for every size.
using SizedSample = std::function<TaskSample(std::size_t size, TaskRandom random)>;

// A sample that leaves room for its answer within draw.length, while one unit more would not. Error naming the task and
// what it takes if not even the least size fits.
TaskSample largest_that_fits(const TaskDraw& draw, const SizeRange& sizes, const SizedSample& make);

}  // namespace kvc
