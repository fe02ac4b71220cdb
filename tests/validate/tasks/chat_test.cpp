#include <gmock/gmock.h>

#include <algorithm>

#include "tests/testing/error_of.h"
#include "tests/validate/tasks/task_fixture.h"

namespace kvc::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

ChatTemplate chat_template(const std::string& source) {
  return ChatTemplate(source, {{"bos_token", "<s>"}}, "template of the test");
}

std::vector<std::int64_t> joined(TaskPrompt prompt) {
  prompt.context.insert(prompt.context.end(), prompt.question.begin(), prompt.question.end());
  return prompt.context;
}

const TaskSample& sample() {
  static const TaskSample one = {
      .context = "A context. [question]",
      .questions = {{.text = " A question?", .answer_prefix = "\nAnswer: ", .answers = {"a"}}}};
  return one;
}

TaskPrompt prompt_of(const Tokenizer& tokenizer, const ChatTemplate& chat, bool questions_after) {
  return encode_prompt({tokenizer, &chat}, sample(), sample().questions.front(), questions_after);
}

TEST(TaskChat, TheAnswerBeginsBehindTheGenerationPrompt) {
  const Tokenizer tokenizer = bundled_tokenizer();
  const ChatTemplate chat = chat_template(
      "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% "
      "endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  const std::string context = "<s><user>A context. [question]";
  const std::string question = " A question?</user><assistant>Answer: ";
  const TaskPrompt whole = prompt_of(tokenizer, chat, false);
  EXPECT_EQ(whole.context, tokenizer.encode(context + question, false));
  EXPECT_TRUE(whole.question.empty());
  const TaskPrompt apart = prompt_of(tokenizer, chat, true);
  EXPECT_EQ(apart.context, tokenizer.encode(context, false));
  EXPECT_EQ(apart.question, tokenizer.encode(question, false));
  EXPECT_EQ(prompt_tokens({tokenizer, &chat}, sample(), true),
            static_cast<std::int64_t>(joined(apart).size()));
}

TEST(TaskChat, AnAnswersOwnWhiteSpaceStays) {
  const Tokenizer tokenizer = bundled_tokenizer();
  const ChatTemplate chat =
      chat_template("{{ messages[0].content }}{% if add_generation_prompt %}<a>{% endif %}");
  for (const auto& [prefix, expected] : {std::pair{"\n  Answer:", "<a>  Answer:"},
                                         {"\n\nAnswer:", "<a>\nAnswer:"},
                                         {" Answer:", "<a>Answer:"},
                                         {"\n", "<a>"},
                                         {"", "<a>"}}) {
    TaskSample one = sample();
    one.questions.front().answer_prefix = prefix;
    EXPECT_EQ(encode_prompt({tokenizer, &chat}, one, one.questions.front(), true).question,
              tokenizer.encode(std::string(" A question?") + expected, false));
  }
}

TEST(TaskChat, BosIsThereAsOftenAsTheTemplateHasIt) {
  const Tokenizer tokenizer = bundled_tokenizer();
  const std::vector<std::int64_t> bos = tokenizer.with_special_tokens({});
  ASSERT_EQ(bos.size(), 1u);
  const auto count = [&](const std::string& source) {
    const std::vector<std::int64_t> ids = joined(prompt_of(tokenizer, chat_template(source), true));
    return std::count(ids.begin(), ids.end(), bos.front());
  };
  const std::string bos_text = tokenizer.decode(bos, false);
  EXPECT_EQ(count(bos_text + "{{ messages[0].content }}"), 1);
  EXPECT_EQ(count("{{ messages[0].content }}"), 0);
}

TEST(TaskChat, QwenIsAskedWithoutThinking) {
  const Tokenizer tokenizer = bundled_tokenizer();
  const fs::path data(KVC_TEST_DATA);
  const ChatTemplate qwen =
      ChatTemplate::read(data / "chat" / "qwen3.jinja", data / "reference-llama");
  const TaskPrompt prompt = prompt_of(tokenizer, qwen, true);
  EXPECT_EQ(prompt.context, tokenizer.encode("<|im_start|>user\nA context. [question]", false));
  EXPECT_EQ(
      prompt.question,
      tokenizer.encode(
          " A question?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nAnswer: ", false));
}

// Llama 3's tells the date.
TEST(TaskChat, PromptsAreTheSameEveryDay) {
  const Tokenizer tokenizer = bundled_tokenizer();
  const TaskPrompt prompt = prompt_of(
      tokenizer, chat_template("{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}"), true);
  EXPECT_EQ(prompt.context, tokenizer.encode("26 Jul 2024: A context. [question]", false));
}

TEST(TaskChat, TemplatesThatHideTheMessageAreRefused) {
  const Tokenizer tokenizer = bundled_tokenizer();
  for (const char* source : {"hello", "{{ messages[0].content }}{{ messages[0].content }}",
                             "{{ messages[0].content | upper }}"}) {
    EXPECT_THAT(error_of([&] { prompt_of(tokenizer, chat_template(source), false); }),
                HasSubstr("template of the test: does not show the user's message"))
        << source;
  }
}

TEST(TaskChat, LengthsAreMetThroughATemplate) {
  const Tokenizer tokenizer = bundled_tokenizer();
  const fs::path data(KVC_TEST_DATA);
  const ChatTemplate chat =
      ChatTemplate::read(data / "chat" / "llama3.jinja", data / "reference-llama");
  const PromptFormat format{tokenizer, &chat};
  for (const std::string& name : built_in_tasks()) {
    const Task task = built_in_task(name);
    const bool after = task.questions_after;
    const TaskSample made = make_sample(task, format, 1500, false, 1, 0);
    const std::int64_t tokens = prompt_tokens(format, made, after) + task.max_new_tokens;
    EXPECT_LE(tokens, 1500) << name;
    EXPECT_GT(tokens, 1300) << name;
    EXPECT_GT(prompt_tokens(format, made, after), prompt_tokens({tokenizer}, made, after)) << name;
  }
}

}  // namespace
}  // namespace kvc::testing
