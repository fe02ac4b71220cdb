#include "validate/tasks/task.h"

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"

namespace kvc {

std::string plain_text(const TaskQuestion& question) {
  return question.text + question.answer_prefix;
}

TaskSample make_sample(const Task& task, const Tokenizer& tokenizer, std::int64_t length,
                       bool questions_after, std::uint64_t seed, std::int64_t index) {
  const std::string origin = fmt::format("{}/{}/{}/{}", seed, task.name, length, index);
  const std::uint64_t own_seed = std::stoull(sha256_hex(origin).substr(0, 16), nullptr, 16);
  return task.make({.task = task.name,
                    .tokenizer = tokenizer,
                    .length = length,
                    .max_new_tokens = task.max_new_tokens,
                    .questions_after = questions_after || task.questions_after,
                    .index = index,
                    .seed = seed,
                    .random = TaskRandom(own_seed)});
}

TaskPrompt encode_prompt(const Tokenizer& tokenizer, const TaskSample& sample,
                         const TaskQuestion& question, bool questions_after) {
  if (!questions_after) {
    return {tokenizer.encode(sample.context + plain_text(question)), {}};
  }
  return {tokenizer.encode(sample.context), tokenizer.encode(plain_text(question), false)};
}

std::int64_t prompt_tokens(const Tokenizer& tokenizer, const TaskSample& sample,
                           bool questions_after) {
  std::size_t most = 0;
  for (const TaskQuestion& question : sample.questions) {
    const TaskPrompt prompt = encode_prompt(tokenizer, sample, question, questions_after);
    most = std::max(most, prompt.context.size() + prompt.question.size());
  }
  return static_cast<std::int64_t>(most);
}

}  // namespace kvc
