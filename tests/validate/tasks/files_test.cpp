#include <gmock/gmock.h>

#include "core/error.h"
#include "core/output.h"
#include "tests/testing/error_of.h"
#include "tests/testing/temporary_directory.h"
#include "tests/validate/tasks/task_fixture.h"

namespace kvc::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

constexpr const char* kSquad = R"({"data": [{"title": "T", "paragraphs": [
  {"context": "The tower is red.", "qas": [
    {"question": "What colour is the tower?", "answers": [{"text": "red"}, {"text": "Red"}, {"text": "red"}]},
    {"question": "Who built it?", "answers": [], "is_impossible": true}]},
  {"context": "The bridge is old.", "qas": [{"question": "How is the bridge?", "answers": [{"text": "old"}]}]}]}]})";
constexpr const char* kHotpot =
    R"([{"question": "Which is older?", "answer": "Oak", "supporting_facts": [["Oak", 0], ["Elm", 1]],
  "context": [["Oak", ["Oak is 9.", " It is tall."]], ["Fir", ["Fir is 3."]], ["Elm", ["Elm is 5."]]]},
  {"question": "Is it?", "answer": "yes", "supporting_facts": [["Ash", 0]], "context": [["Ash", ["Ash is."]], ["Fir", ["Fir is 3."]]]}])";

class TaskFiles : public ::testing::Test {
 protected:
  fs::path file(const std::string& name, const std::string& text) const {
    const fs::path path = directory_ / name;
    write_file(path, text);
    return path;
  }
  // What reading the file says.
  std::string reading_error(const std::string& name, const std::string& text) const {
    const fs::path path = file(name, text);
    const std::string message = error_of([&] { read_task_inputs({path}); });
    EXPECT_THAT(message, AnyOf("", HasSubstr(name)));
    return message;
  }
  TaskSample sample_of(const std::string& name, const std::vector<fs::path>& files,
                       std::int64_t length) const {
    const Task task = choose_tasks({name}, read_task_inputs(files)).at(0);
    return make_sample(task, {bundled_tokenizer()}, length, false, 0, 0);
  }
  TemporaryDirectory directory_;
};

TEST_F(TaskFiles, SquadQuestions) {
  const TaskInputs inputs = read_task_inputs({file("a.json", kSquad)});
  ASSERT_EQ(inputs.squad->questions.size(), 2u);
  EXPECT_EQ(inputs.squad->documents.size(), 2u);
  EXPECT_THAT(inputs.squad->questions[0].answers, ElementsAre("red", "Red"));
  EXPECT_THAT(inputs.squad->questions[0].nearby, ElementsAre(1u)) << "of its article";
  EXPECT_THAT(inputs.squad->questions[1].nearby, ElementsAre(0u));
  const std::vector<Task> tasks = choose_tasks({"qa_1"}, inputs);
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].num_samples, 2);
  EXPECT_EQ(tasks[0].max_new_tokens, 32);
  const TaskSample sample = make_sample(tasks[0], {bundled_tokenizer()}, 1000, false, 0, 0);
  EXPECT_THAT(sample.context, HasSubstr("The tower is red."));
  EXPECT_THAT(sample.context, HasSubstr("The bridge is old."));
  EXPECT_EQ(tasks[0].score("It is " + sample.questions[0].answers[0] + ".", sample.questions[0]),
            100);
}

TEST_F(TaskFiles, HotpotEvidenceStaysWhereThereIsNoRoom) {
  const std::vector<fs::path> files = {file("h.json", kHotpot)};
  const Task task = choose_tasks({"qa_2"}, read_task_inputs(files)).at(0);
  EXPECT_EQ(task.num_samples, 2);
  bool asked_oak = false;
  for (std::int64_t index = 0; index < 2; ++index) {
    const TaskSample wide = make_sample(task, {bundled_tokenizer()}, 1000, false, 0, index);
    for (const char* document :
         {"Oak\nOak is 9. It is tall.", "Fir\nFir is 3.", "Elm\nElm is 5.", "Ash\nAsh is."}) {
      EXPECT_THAT(wide.context, HasSubstr(document));
    }
    const bool oak = wide.questions[0].answers.front() == "Oak";
    asked_oak = asked_oak || oak;
    const std::int64_t least =
        prompt_tokens({bundled_tokenizer()}, wide, false) - (oak ? 25 : 55) + 32;
    const TaskSample narrow = make_sample(task, {bundled_tokenizer()}, least, false, 0, index);
    for (const char* document :
         oak ? std::vector{"Oak is 9.", "Elm is 5."} : std::vector{"Ash is."}) {
      EXPECT_THAT(narrow.context, HasSubstr(document));
    }
    EXPECT_LT(narrow.context.size(), wide.context.size());
    EXPECT_EQ(wide.depths.size(), oak ? 2u : 1u);
  }
  EXPECT_TRUE(asked_oak);
}

TEST_F(TaskFiles, QuestionsWithBlankAnswersAreLeftOut) {
  const std::string hotpot = kHotpot;
  const std::size_t answer = hotpot.find("\"Oak\",");
  const TaskInputs inputs =
      read_task_inputs({file("h.json", std::string(hotpot).replace(answer, 5, "\" \""))});
  ASSERT_EQ(inputs.hotpot->questions.size(), 1u);
  EXPECT_THAT(inputs.hotpot->questions[0].answers, ElementsAre("yes"));
  const std::string squad = kSquad;
  EXPECT_EQ(
      read_task_inputs({file("s.json", std::string(squad).replace(squad.find("old\"}"), 3, " "))})
          .squad->questions.size(),
      1u);
}

TEST_F(TaskFiles, SeveralFilesOfAKindAreOne) {
  const TaskInputs inputs =
      read_task_inputs({file("a.json", kSquad), file("b.json", kSquad + std::string("\n")),
                        file("same.json", kSquad), file("c.txt", "One two. Three.")});
  EXPECT_EQ(inputs.squad->questions.size(), 4u);
  EXPECT_EQ(inputs.squad->questions[3].evidence, std::vector<std::size_t>{3});
  EXPECT_EQ(inputs.hashes.size(), 3u);
  EXPECT_THAT(inputs.prose->sentences(0, 5), ElementsAre("One two.", "Three.", "One two."));
}

TEST_F(TaskFiles, ProseOfTheUserIsTheHaystack) {
  const TaskSample sample =
      sample_of("niah_single_2", {file("hay.jsonl", "{\"text\": \"Straw straw straw.\"}\n")}, 400);
  EXPECT_THAT(sample.context, HasSubstr("Straw straw straw. Straw straw straw."));
}

TEST_F(TaskFiles, TasksWithoutTheirFileAreRefusedByName) {
  for (const auto& [name, layout] :
       std::vector<std::pair<std::string, std::string>>{{"qa_1", "SQuAD"},
                                                        {"qa_2", "HotpotQA"},
                                                        {"longbench", "LongBench"},
                                                        {"ruler", "qa_1: reads"}}) {
    const std::string message =
        error_of([&, &task = name] { choose_tasks({task}, read_task_inputs({})); });
    EXPECT_THAT(message, HasSubstr(name == "ruler" ? "qa_1" : "--tasks " + name));
    EXPECT_THAT(message, HasSubstr(layout));
    EXPECT_THAT(message, HasSubstr("--task-text FILE"));
    const bool names_others = message.ends_with(
        "leave the task out: --tasks "
        "niah_single_1,niah_single_2,niah_single_3,niah_multikey_1,niah_multikey_2,niah_"
        "multikey_3,niah_multivalue,niah_multiquery,vt,cwe,fwe");
    EXPECT_EQ(names_others, name == "ruler") << message;
  }
}

TEST_F(TaskFiles, AFileThatNoTaskReadsIsRefused) {
  const TaskInputs inputs = read_task_inputs({file("a.json", kSquad)});
  EXPECT_THROW(choose_tasks({"passkey"}, inputs), UsageError);
  EXPECT_THROW(choose_tasks({"qa_2"}, inputs), UsageError);
}

TEST_F(TaskFiles, BadFilesGiveOneMessage) {
  EXPECT_THAT(reading_error("empty.txt", ""), HasSubstr("is empty"));
  EXPECT_THAT(reading_error("blank.jsonl", " \n\n"), HasSubstr("is empty"));
  EXPECT_THAT(reading_error("list.csv", "a,b"), HasSubstr("expected a .txt, .json or .jsonl file"));
  EXPECT_THAT(reading_error("broken.json", "{\"data\": ["), HasSubstr("broken.json"));
  EXPECT_THAT(reading_error("other.json", "{\"version\": 1}"),
              HasSubstr("neither of SQuAD's layout"));
  EXPECT_THAT(reading_error("none.json", "{\"data\": []}"),
              HasSubstr("no question with an answer"));
  EXPECT_THAT(reading_error("list.json", "[]"), HasSubstr("no question with an answer"));
  EXPECT_THAT(reading_error("squad.json", R"({"data": [{"paragraphs": [{"qas": []}]}]})"),
              HasSubstr("article 1: \"context\" is missing"));
  EXPECT_THAT(
      reading_error("squad2.json", R"({"data": [{"paragraphs": [{"context": "x", "qas": 3}]}]})"),
      HasSubstr("\"qas\" must be a list, found 3"));
  EXPECT_THAT(reading_error("hotpot.json", R"([{"question": "q"}])"),
              HasSubstr("record 1: \"answer\" is missing"));
  EXPECT_THAT(
      reading_error(
          "hotpot2.json",
          R"([{"question": "q", "answer": "a", "supporting_facts": [["X", 0]], "context": [["Y", ["s"]]]}])"),
      HasSubstr("no document of \"context\" is a supporting fact"));
  EXPECT_THAT(
      reading_error(
          "hotpot3.json",
          R"([{"question": "q", "answer": "a", "supporting_facts": [["X", 0]], "context": [["X", "s"]]}])"),
      HasSubstr("expected a list of sentences"));
  EXPECT_THAT(reading_error("lines.jsonl", "{\"question\": 1}\n"), HasSubstr("\"text\" (prose)"));
  EXPECT_THAT(reading_error("lines2.jsonl", "no json\n"), HasSubstr("\"text\" (prose)"));
  EXPECT_THAT(reading_error("bench.jsonl", "{\"context\": \"c\"}\n"),
              HasSubstr("bench.jsonl:1: \"dataset\" is missing"));
  EXPECT_THAT(
      reading_error(
          "bench2.jsonl",
          "\n{\"context\": \"c\", \"input\": \"\", \"dataset\": \"lcc\", \"answers\": []}\n"),
      HasSubstr("bench2.jsonl:2: \"answers\" is empty"));
  EXPECT_THAT(
      reading_error(
          "bench3.jsonl",
          "{\"context\": \"c\", \"input\": \"\", \"dataset\": \"lcc\", \"answers\": [1]}\n"),
      HasSubstr("\"answers\" must be texts"));
  EXPECT_THAT(
      reading_error(
          "bench4.jsonl",
          "{\"context\": \"c\", \"input\": \"\", \"dataset\": \"lcc\", \"answers\": [\"1\"]}\n{\n"),
      HasSubstr("bench4.jsonl:2: not valid JSON"));
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(reading_error("deep.jsonl",
                            "{\"context\": \"c\", \"input\": \"\", \"dataset\": \"lcc\", "
                            "\"answers\": [" +
                                deep + "]}\n"),
              HasSubstr("nested deeper"));
  std::string many = "{\"context\": \"c\", \"input\": \"\", \"dataset\": \"lcc\"";
  for (int i = 0; i < 100000; ++i) {
    many += fmt::format(", \"{}\": 0", i);
  }
  EXPECT_THAT(reading_error("many.jsonl", many + "}\n"), HasSubstr("\"answers\" is missing"));
  EXPECT_THAT(error_of([&] { read_task_inputs({directory_ / "absent.txt"}); }),
              HasSubstr("absent.txt"));
}

std::string longbench_line(const std::string& dataset, const std::string& context,
                           const std::string& answer, const std::string& classes = "null") {
  return R"({"input": "in", "context": ")" + context + R"(", "answers": [")" + answer +
         R"("], "length": 3, "dataset": ")" + dataset + R"(", "language": "en", "all_classes": )" +
         classes + "}\n";
}

TEST_F(TaskFiles, LongBenchIsATaskPerDataset) {
  const fs::path path =
      file("l.jsonl", longbench_line("hotpotqa", "one two", "Paris") +
                          longbench_line("trec", "three", "City", R"(["City", "River"])") +
                          longbench_line("hotpotqa_e", "four", "Rome") +
                          longbench_line("lcc", "x = 1", "y = 2") +
                          longbench_line("passage_count", "p", "7") +
                          longbench_line("passage_retrieval_en", "p", "Paragraph 7"));
  const std::vector<Task> tasks = choose_tasks({"longbench"}, read_task_inputs({path}));
  ASSERT_EQ(tasks.size(), 5u);
  EXPECT_EQ(tasks[0].name, "longbench/hotpotqa");
  EXPECT_EQ(tasks[0].num_samples, 2);
  EXPECT_EQ(tasks[0].max_new_tokens, 32);
  const auto score = [&](std::size_t task, const std::string& output) {
    const TaskSample sample = make_sample(tasks[task], {bundled_tokenizer()}, 500, false, 0, 0);
    return tasks[task].score(output, sample.questions.front());
  };
  EXPECT_EQ(score(0, "the Paris"), 100);
  EXPECT_EQ(score(1, "\nCity\nRiver"), 100) << "the first line alone";
  EXPECT_EQ(score(1, "City River"), 50);
  EXPECT_EQ(score(2, "y = 2\nz"), 100);
  EXPECT_EQ(score(3, "7 or 8"), 50);
  EXPECT_EQ(score(4, "7"), 100);
  const TaskSample second = make_sample(tasks[0], {bundled_tokenizer()}, 500, false, 0, 1);
  EXPECT_THAT(second.context, HasSubstr("four"));
  EXPECT_EQ(plain_text(second.questions.front()), "\n\nQuestion: in\nAnswer:");
}

TEST_F(TaskFiles, ALongContextLosesItsMiddle) {
  std::string context = "Begin ";
  for (int i = 0; i < 2000; ++i) {
    context += "\xC3\xA9l ";
  }
  context += "END";
  const fs::path path = file("l.jsonl", longbench_line("qasper", context, "a"));
  const TaskSample sample = sample_of("longbench", {path}, 600);
  const std::int64_t tokens = prompt_tokens({bundled_tokenizer()}, sample, false) + 128;
  EXPECT_LE(tokens, 600);
  EXPECT_GT(tokens, 590);
  EXPECT_THAT(sample.context, HasSubstr("Begin "));
  EXPECT_THAT(sample.context, HasSubstr(" END"));
}

TEST_F(TaskFiles, DatasetsThatHaveNoMetricAreRefused) {
  for (const auto& [dataset, words] : std::vector<std::pair<std::string, std::string>>{
           {"squad", "unknown dataset 'squad'; known: narrativeqa, qasper"},
           {"dureader", "'dureader' needs the words of Chinese text"},
           {"trec", "'trec' has no \"all_classes\""}}) {
    const fs::path path = file(dataset + ".jsonl", longbench_line(dataset, "c", "a"));
    EXPECT_THAT(error_of([&] { choose_tasks({"longbench"}, read_task_inputs({path})); }),
                HasSubstr(words))
        << dataset;
  }
}

}  // namespace
}  // namespace kvc::testing
