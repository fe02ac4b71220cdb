#include "validate/tasks/task.h"

#include <algorithm>
#include <ctime>

#include "core/error.h"
#include "core/hash.h"

namespace kvc {
namespace {

// 10:30 of 26 July 2024 UTC, which is this day from Hawaii to New Zealand: templates show the local date.
constexpr std::time_t kPromptDay = 1721989800;

struct PromptText {
  std::string context, question;
};

// A bracket begins it and is in no other place of it, so it is found where it was put.
std::string text_that_lacks(const std::string& context) {
  std::string text = "[question]";
  for (int number = 1; context.find(text) != std::string::npos; ++number) {
    text = fmt::format("[question {}]", number);
  }
  return text;
}

// The question takes the place of a mark behind the context, so that the context's text is the same for all questions.
PromptText chat_text(const ChatTemplate& chat_template, const std::string& context,
                     const TaskQuestion& question) {
  const std::string mark = text_that_lacks(context);
  const std::string rendered =
      chat_template.render({{"user", context + mark}}, {{"enable_thinking", false}}, kPromptDay);
  const std::size_t place = rendered.find(mark);
  KVC_CHECK(
      place != std::string::npos && rendered.find(mark, place + 1) == std::string::npos,
      "{}: does not show the user's message once and as it is, which --task-chat needs; leave "
      "--task-chat out",
      chat_template.subject());
  const std::string& prefix = question.answer_prefix;
  // Without the line break, or the spaces, that part it from a question in a prompt without a template.
  const std::size_t begin =
      prefix.starts_with('\n') ? 1 : std::min(prefix.find_first_not_of(' '), prefix.size());
  return {rendered.substr(0, place),
          question.text + rendered.substr(place + mark.size()) + prefix.substr(begin)};
}

}  // namespace

std::string plain_text(const TaskQuestion& question) {
  return question.text + question.answer_prefix;
}

namespace {

TaskDraw draw_of(const Task& task, const PromptFormat& format, std::int64_t length,
                 bool questions_after, std::uint64_t seed, std::int64_t index) {
  const std::string origin = fmt::format("{}/{}/{}/{}", seed, task.name, length, index);
  const std::uint64_t own_seed = std::stoull(sha256_hex(origin).substr(0, 16), nullptr, 16);
  return {.task = task.name,
          .format = format,
          .length = length,
          .max_new_tokens = task.max_new_tokens,
          .questions_after = questions_after || task.questions_after,
          .index = index,
          .seed = seed,
          .random = TaskRandom(own_seed)};
}

}  // namespace

TaskSample make_sample(const Task& task, const PromptFormat& format, std::int64_t length,
                       bool questions_after, std::uint64_t seed, std::int64_t index) {
  return task.make(draw_of(task, format, length, questions_after, seed, index));
}

std::int64_t least_length(const Task& task, const PromptFormat& format, std::int64_t length,
                          bool questions_after, std::uint64_t seed, std::int64_t index) {
  std::int64_t least = 0;
  TaskDraw draw = draw_of(task, format, length, questions_after, seed, index);
  draw.least_length = &least;
  task.make(draw);
  return least;
}

TaskPrompt encode_prompt(const PromptFormat& format, const TaskSample& sample,
                         const TaskQuestion& question, bool questions_after) {
  const bool is_plain = format.chat_template == nullptr;
  const PromptText text = is_plain ? PromptText{sample.context, plain_text(question)}
                                   : chat_text(*format.chat_template, sample.context, question);
  // A template has the tokens that a tokenizer adds.
  const bool adds_bos = is_plain && sample.begins_with_bos && !format.bos.empty();
  const auto encode = [&](const std::string& part, bool is_first) {
    return adds_bos && is_first ? format.tokenizer.encode(format.bos + part, false)
                                : format.tokenizer.encode(part, is_plain && is_first);
  };
  if (!questions_after) {
    return {encode(text.context + text.question, true), {}};
  }
  return {encode(text.context, true), encode(text.question, false)};
}

std::int64_t prompt_tokens(const PromptFormat& format, const TaskSample& sample,
                           bool questions_after) {
  std::size_t most = 0;
  for (const TaskQuestion& question : sample.questions) {
    const TaskPrompt prompt = encode_prompt(format, sample, question, questions_after);
    most = std::max(most, prompt.context.size() + prompt.question.size());
  }
  return static_cast<std::int64_t>(most);
}

}  // namespace kvc
