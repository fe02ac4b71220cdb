// A model's greedy answers to the questions of samples, through its compressed cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "validate/tasks/task.h"

namespace kvc {

// Every context is prefilled and compressed, with its question or, under `questions_after`, without it: questions are
// then read through the compressed cache, each by a fork of the context's. One batch; [samples][questions]. An output
// ends before a token of `stop_ids`.
std::vector<std::vector<std::string>> greedy_answers(const Engine& engine,
                                                     const PromptFormat& format, const Task& task,
                                                     const std::vector<TaskSample>& samples,
                                                     const std::vector<std::int64_t>& stop_ids,
                                                     bool questions_after);

}  // namespace kvc
