// A run of tasks: both models answer the same samples, in batches, and the scores are compared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "model/config.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/engine.h"
#include "validate/task_results.h"
#include "validate/tasks/task.h"
#include "validate/validate.h"

namespace kvc {

// Every line's scores, averaged by task and length, in the order of the lines.
std::vector<TaskScores> summarize(const std::vector<Json>& lines);

// Tokens of prompts and answers, each once; without any the context, at most 4096. UsageError beyond the context.
std::vector<std::int64_t> task_lengths(const TaskOptions& options, const ModelConfig& config);

class TaskSuite {
 public:
  // Reads the texts, makes the first sample of each task at each length, and looks how long the others are, so that what cannot
  // work is known before any model runs. options.tasks.lengths: those of task_lengths(). `run` is all else that results depend on.
  TaskSuite(const ValidateOptions& options, const ModelConfig& config, Json run);

  // Continues what options.tasks.results has.
  std::vector<TaskScores> run(const Engine& reference, const Engine& candidate);

 private:
  struct Part {  // a task at a length
    const Task* task;
    std::int64_t length;
    std::int64_t num_samples;
  };
  void check_fixed_prompts(const ModelConfig& config) const;
  void check_length(const Part& part) const;
  void check_left_lines();
  // The greatest least length among a part's samples.
  std::int64_t least_length_of(const Part& part) const;
  PromptFormat format() const;
  TaskSample sample(const Part& part, std::int64_t index) const;
  std::vector<Json> run_batch(const Part& part, std::int64_t begin, std::int64_t end,
                              const Engine& reference, const Engine& candidate) const;

  TaskOptions options_;
  std::uint64_t seed_;
  Tokenizer tokenizer_;
  std::string bos_;
  std::optional<ChatTemplate> chat_template_;
  std::vector<std::int64_t> stop_ids_;
  std::vector<Task> tasks_;
  std::vector<Part> parts_;
  std::unique_ptr<TaskResults> results_;
};

}  // namespace kvc
