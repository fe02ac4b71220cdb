// A task: prompts with known answers, made from a seed at a length in tokens, and the score of an answer.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "model/chat/chat_template.h"
#include "model/tokenizer/tokenizer.h"
#include "validate/tasks/task_random.h"

namespace kvc {

struct TaskQuestion {
  std::string text;
  // The answer's beginning, which the model continues. White space before it parts it from `text`.
  std::string answer_prefix{};
  std::vector<std::string> answers;    // at least one
  std::vector<std::string> classes{};  // every answer there is, where a score depends on it
};
// What follows the context where no chat template is applied.
std::string plain_text(const TaskQuestion& question);

struct TaskSample {
  std::string context;                  // what is read first
  std::vector<TaskQuestion> questions;  // each follows the context alone
  std::vector<double>
      depths{};  // places in the context of what is asked for: 0 its start, 1 its end
  // Plain prompts begin with the tokenizer's BOS, whether or not it adds one to texts by itself.
  bool begins_with_bos = false;
};

// How prompts become tokens.
struct PromptFormat {
  const Tokenizer& tokenizer;
  const ChatTemplate* chat_template = nullptr;  // null: prompts are plain text
  std::string bos{};                            // the tokenizer's BOS; empty: none
};

// What a sample is made from.
struct TaskDraw {
  const std::string& task;
  const PromptFormat& format;
  std::int64_t length = 0;          // tokens of the context, one question and its answer
  std::int64_t max_new_tokens = 0;  // room for the answer
  bool questions_after = false;     // context and question are encoded apart
  std::int64_t index = 0;           // of the sample
  std::uint64_t seed = 0;           // of the run: the same for all samples
  TaskRandom random;                // of the sample alone
  // If set, the sample is made as short as it gets, and this is its length then.
  std::int64_t* least_length = nullptr;
};

struct Task {
  std::string name;
  std::int64_t max_new_tokens = 0;
  std::function<TaskSample(const TaskDraw&)> make;
  double (*score)(const std::string& output, const TaskQuestion& question) = nullptr;  // 0 to 100
  bool questions_after = false;  // questions are always read through the compressed cache
  std::int64_t num_samples = std::numeric_limits<std::int64_t>::max();  // there are no more
  // Samples are records of a file: none gets shorter for a length.
  bool fixed_prompts = false;
};

// Sample `index` of a task. Equal arguments give equal samples.
TaskSample make_sample(const Task& task, const PromptFormat& format, std::int64_t length,
                       bool questions_after, std::uint64_t seed, std::int64_t index);

// The least length that the sample takes, its answer included; 0 where it has no length of its own to choose. What a sample draws
// depends on `length`.
std::int64_t least_length(const Task& task, const PromptFormat& format, std::int64_t length,
                          bool questions_after, std::uint64_t seed, std::int64_t index);

struct TaskPrompt {
  std::vector<std::int64_t> context;  // prefilled
  std::vector<std::int64_t>
      question;  // read through the compressed cache; empty: part of `context`
};
// With a chat template, context and question are one message of the user, rendered on the same day always and, where a
// template asks, without thinking; behind it come the beginning of the assistant's message and of its answer. No token is
// added to what the template has. Error if the template does not show the message once as it is.
TaskPrompt encode_prompt(const PromptFormat& format, const TaskSample& sample,
                         const TaskQuestion& question, bool questions_after);
// Tokens of the context with its longest question.
std::int64_t prompt_tokens(const PromptFormat& format, const TaskSample& sample,
                           bool questions_after);

}  // namespace kvc
