#include <gmock/gmock.h>

#include <limits>

#include "core/error.h"
#include "core/output.h"
#include "tests/testing/error_of.h"
#include "tests/testing/temporary_directory.h"
#include "tests/validate/tasks/task_fixture.h"

namespace kvc::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

Json record(const std::string& task, const std::string& context,
            const std::vector<std::string>& answers, std::int64_t max_new_tokens) {
  return {{"context", context},
          {"question", "What is it? "},
          {"answer_prefix", "The code is"},
          {"answer", answers},
          {"task", task},
          {"max_new_tokens", max_new_tokens}};
}

class Kvpress : public ::testing::Test {
 protected:
  fs::path file(const std::vector<Json>& records) const {
    std::string text;
    for (const Json& json : records) {
      text += json.dump() + "\n";
    }
    const fs::path path = directory_ / "ruler.jsonl";
    fs::remove(path);
    write_file(path, text);
    return path;
  }
  std::vector<Task> tasks_of(const std::vector<Json>& records) const {
    return choose_tasks({"kvpress"}, read_task_inputs({file(records)}));
  }
  // What reading a good record and then this one says.
  std::string reading_error(const Json& second) const {
    return error_of([&] { tasks_of({record("vt", "c", {"a"}, 30), second}); });
  }
  TemporaryDirectory directory_;
};

// kvpress puts the BOS before a context itself, and encodes without what a tokenizer adds.
TEST_F(Kvpress, PromptsBeginWithTheBosThatTheTokenizerMayNotAdd) {
  const fs::path source = fs::path(KVC_TEST_DATA) / "reference-llama";
  const fs::path silent = directory_ / "silent";
  fs::create_directory(silent);
  fs::copy_file(source / "tokenizer_config.json", silent / "tokenizer_config.json");
  Json tokenizer_json = read_json(source / "tokenizer.json");
  tokenizer_json["post_processor"] = nullptr;
  write_file(silent / "tokenizer.json", tokenizer_json.dump());
  const Tokenizer adds = Tokenizer::load(source), adds_none = Tokenizer::load(silent);
  const std::string bos = special_tokens(silent).at("bos_token").get<std::string>();
  const Task task = tasks_of({record("vt", "a context", {"a"}, 30)}).at(0);
  for (const bool questions_after : {false, true}) {
    std::vector<std::vector<std::int64_t>> contexts;
    for (const Tokenizer* tokenizer : {&adds, &adds_none}) {
      const PromptFormat format = {*tokenizer, nullptr, bos};
      const TaskSample sample = make_sample(task, format, 512, questions_after, 0, 0);
      contexts.push_back(
          encode_prompt(format, sample, sample.questions.front(), questions_after).context);
    }
    EXPECT_EQ(contexts[0], contexts[1]);
    EXPECT_EQ(contexts[0].front(), adds.with_special_tokens({}).front());
    EXPECT_NE(contexts[0][1], contexts[0].front());
  }
}

TEST_F(Kvpress, IsATaskPerNameOfTheRecords) {
  const std::vector<Task> tasks =
      tasks_of({record("niah_single_1", "one", {"42"}, 128), record("qa_1", "two", {"x", "y"}, 32),
                record("niah_single_1", "three", {"43"}, 128)});
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].name, "kvpress/niah_single_1");
  EXPECT_EQ(tasks[0].num_samples, 2);
  EXPECT_EQ(tasks[0].max_new_tokens, 128);
  EXPECT_EQ(tasks[1].name, "kvpress/qa_1");
  EXPECT_EQ(tasks[1].num_samples, 1);
  EXPECT_EQ(tasks[1].max_new_tokens, 32);
  EXPECT_TRUE(tasks[0].questions_after);
}

TEST_F(Kvpress, PromptsAreTheRecordsInFull) {
  const Task task =
      tasks_of({record("vt", "one", {"A"}, 30), record("vt", "A context.\n", {"B"}, 30)}).at(0);
  const Tokenizer tokenizer = bundled_tokenizer();
  // A length that the record does not fit.
  const TaskSample sample = make_sample(task, {tokenizer}, 4, false, 0, 1);
  EXPECT_EQ(sample.questions.size(), 1u);
  const TaskPrompt prompt =
      encode_prompt({tokenizer}, sample, sample.questions.front(), task.questions_after);
  EXPECT_EQ(prompt.context, tokenizer.encode("A context.\n", true));
  EXPECT_EQ(prompt.question, tokenizer.encode("What is it? \nThe code is", false));
  EXPECT_EQ(sample.questions.front().answers, std::vector<std::string>{"B"});
}

TEST_F(Kvpress, ScoresTheShareOfAnswersAndAnyOneForDocuments) {
  const std::vector<std::string> answers = {"1234", "\xC3\x89lan"};  // Élan
  const std::vector<Task> tasks =
      tasks_of({record("niah_multivalue", "c", answers, 128), record("qa_2", "c", answers, 32),
                record("qasper", "c", answers, 32)});
  const auto score = [&](std::size_t task, const std::string& output) {
    return tasks[task].score(
        output,
        make_sample(tasks[task], {bundled_tokenizer()}, 500, false, 0, 0).questions.front());
  };
  EXPECT_EQ(score(0, " 1234 and \xC3\xA9LAN"), 100) << "any case of any script";
  EXPECT_EQ(score(0,
                  "12\n\x01"
                  "34"),
            50)
      << "control characters part nothing";
  EXPECT_EQ(score(0, "12 34"), 0);
  EXPECT_EQ(score(1, "1234"), 100);
  EXPECT_EQ(score(1, "none"), 0);
  EXPECT_EQ(score(2, "1234"), 50) << "the category ends at the first _";
}

TEST_F(Kvpress, BadRecordsAreNamedByTheirLine) {
  for (const char* field :
       {"context", "question", "answer_prefix", "answer", "task", "max_new_tokens"}) {
    Json json = record("vt", "c", {"a"}, 30);
    json.erase(field);
    EXPECT_THAT(reading_error(json),
                HasSubstr(fmt::format("ruler.jsonl:2: \"{}\" is missing", field)));
  }
  Json json = record("vt", "c", {}, 30);
  EXPECT_THAT(reading_error(json), HasSubstr("ruler.jsonl:2: \"answer\" is empty"));
  json["answer"] = "a";
  EXPECT_THAT(reading_error(json), HasSubstr("ruler.jsonl:2: \"answer\" must be a list"));
  json["answer"] = {1};
  EXPECT_THAT(reading_error(json), HasSubstr("ruler.jsonl:2: \"answer\" must be texts, found 1"));
  EXPECT_THAT(reading_error(record("", "c", {"a"}, 30)),
              HasSubstr("ruler.jsonl:2: \"task\" is empty"));
  EXPECT_THAT(reading_error(record("vt", "", {"a"}, 30)),
              HasSubstr("ruler.jsonl:2: \"context\" is empty"));
  EXPECT_THAT(reading_error(record("vt", "c", {"a"}, 0)),
              HasSubstr("ruler.jsonl:2: \"max_new_tokens\" must be from 1 to 1073741824, found 0"));
  EXPECT_THAT(reading_error(record("vt", "c", {"a"}, std::numeric_limits<std::int64_t>::max())),
              HasSubstr("\"max_new_tokens\" must be from 1 to"));
  EXPECT_THAT(reading_error(record("vt", "c", {"a"}, 31)),
              HasSubstr("ruler.jsonl:2: \"max_new_tokens\" is 31, but 30 in "));
  EXPECT_EQ(reading_error(record("vt", "c", {"a"}, 30)), "");
}

TEST_F(Kvpress, NeedsItsFile) {
  EXPECT_THROW(choose_tasks({"kvpress"}, read_task_inputs({})), Error);
  EXPECT_THROW(choose_tasks({"passkey"}, read_task_inputs({file({record("vt", "c", {"a"}, 30)})})),
               UsageError);
}

}  // namespace
}  // namespace kvc::testing
