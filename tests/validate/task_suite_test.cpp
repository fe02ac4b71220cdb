#include "validate/task_suite.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/error.h"
#include "runtime/generate.h"
#include "runtime/text_stream.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "validate/greedy_answers.h"
#include "validate/report.h"
#include "validate/task_report.h"

namespace kvc::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Json scored(const std::string& task, std::int64_t length, double reference, double candidate) {
  return {{"task", task},
          {"length", length},
          {"reference", {{"score", reference}}},
          {"candidate", {{"score", candidate}}}};
}

std::vector<TaskScores> three_samples() {
  return summarize({scored("niah", 512, 100, 50), scored("niah", 512, 50, 50),
                    scored("niah", 512, 0, 0), scored("niah", 1024, 100, 100)});
}

TEST(TaskScores, AreMeansWithPairedErrors) {
  const std::vector<TaskScores> scores = three_samples();
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0].num_samples, 3);
  EXPECT_DOUBLE_EQ(scores[0].reference.mean, 50);
  // Deviations 50, 0, -50: sqrt(3/2 * 5000) / 3.
  EXPECT_DOUBLE_EQ(scores[0].reference.standard_error, std::sqrt(7500.0) / 3);
  EXPECT_DOUBLE_EQ(scores[0].difference.mean, -50.0 / 3);
  // Differences -50, 0, 0: deviations 100/3, 50/3, 50/3: sqrt(3/2 * 15000/9) / 3.
  EXPECT_DOUBLE_EQ(scores[0].difference.standard_error, 50.0 / 3);
  EXPECT_EQ(scores[1].length, 1024);
  EXPECT_TRUE(std::isnan(scores[1].difference.standard_error));
}

TEST(TaskScores, AppearInEveryReport) {
  ValidationReport report;
  report.options["candidate"] = "smaller";
  EXPECT_EQ(tasks_text(report), "");
  EXPECT_THAT(html_report(report), Not(HasSubstr("<h2>Tasks</h2>")));
  EXPECT_TRUE(to_json(report)["tasks"].is_null());
  report.tasks = three_samples();
  EXPECT_THAT(text_report(report), HasSubstr("niah"));
  EXPECT_THAT(text_report(report), HasSubstr("-16.7 ± 16.7"));
  EXPECT_THAT(
      html_report(report),
      HasSubstr("<tr><td>niah</td><td>512</td><td>3</td><td>50.0</td><td>33.3</td><td>-16.7 "
                "<small>± 16.7</small></td></tr>"));
  EXPECT_THAT(text_report(report), Not(HasSubstr("chat template")));
  EXPECT_THAT(html_report(report), Not(HasSubstr("chat template")));
  const Json json = parse_json(dump_json(to_json(report)), "report");
  EXPECT_EQ(json["tasks"][1]["candidate"]["mean"], 100.0);
  EXPECT_TRUE(json["tasks"][1]["candidate"]["standard_error"].is_null());
  report.options["tasks"]["chat"] = true;
  EXPECT_THAT(text_report(report), HasSubstr("asked through the original's chat template"));
  EXPECT_THAT(html_report(report), HasSubstr("It goes through the original's chat template."));
}

TEST(TaskScores, ThatMissTheirShareAreSentences) {
  TaskOptions options;
  EXPECT_TRUE(missed_tasks(options, three_samples()).empty());
  options.min_ratio = 0.9;
  const std::vector<std::string> missed = missed_tasks(options, three_samples());
  ASSERT_EQ(missed.size(), 1u);
  EXPECT_THAT(missed[0], HasSubstr("niah at 512 tokens: 33.3333 of the original's 50 is below "
                                   "--min-task-ratio 0.9"));
  options.min_ratio = 0.6;
  EXPECT_TRUE(missed_tasks(options, three_samples()).empty());
}

TEST(TaskScores, ThatAnOriginalOfZeroLeavesUndecidedAreSentences) {
  std::vector<TaskScores> scores = three_samples();
  scores[0].reference.mean = 0;
  TaskOptions options;
  EXPECT_TRUE(undecided_tasks(options, scores).empty());
  options.min_ratio = 0.1;
  ASSERT_EQ(undecided_tasks(options, scores).size(), 2u);
  EXPECT_THAT(undecided_tasks(options, scores)[0],
              HasSubstr("niah at 512 tokens: the original scores 0, so --min-task-ratio 0.1"));
  EXPECT_TRUE(missed_tasks(options, scores).empty());
}

// 33.3 of 50 with an error of 16.7 of three samples: the interval reaches 71.7 to either side.
TEST(TaskScores, ThatTooFewSamplesLeaveUndecidedAreSentences) {
  TaskOptions options;
  for (const double ratio : {0.6, 0.9}) {
    options.min_ratio = ratio;
    const std::vector<std::string> undecided = undecided_tasks(options, three_samples());
    ASSERT_EQ(undecided.size(), 2u);
    EXPECT_THAT(undecided[0], HasSubstr("niah at 512 tokens: 33.3333 of the original's 50 does not "
                                        "decide --min-task-ratio"));
    EXPECT_THAT(undecided[0], HasSubstr("3 samples; ask more with --task-samples"));
    EXPECT_THAT(undecided[1], AllOf(HasSubstr("niah at 1024 tokens: 100 of the original's 100"),
                                    HasSubstr("one sample has no standard error; ask more")));
  }
  std::vector<TaskScores> alike = three_samples();
  alike[0].candidate = alike[0].reference;
  alike[0].difference = {0, 0};
  alike.pop_back();  // of one sample
  EXPECT_TRUE(undecided_tasks(options, alike).empty());
}

TEST(TaskLengths, AreTakenOnce) {
  ModelConfig config;
  config.max_position_embeddings = 1024;
  TaskOptions options;
  EXPECT_EQ(task_lengths(options, config), (std::vector<std::int64_t>{1024}));
  options.lengths = {128, 512, 128};
  EXPECT_EQ(task_lengths(options, config), (std::vector<std::int64_t>{128, 512}));
  options.lengths = {1025};
  EXPECT_THROW(task_lengths(options, config), UsageError);
}

class GreedyAnswers : public ::testing::Test {
 protected:
  void SetUp() override {
    SyntheticCheckpoint synthetic;
    synthetic.tokenizer = true;
    write_synthetic_checkpoint(model_, synthetic);
    task_.max_new_tokens = 12;
    samples_ = {
        {.context = "Once upon a time there was a dog.",
         .questions = {{.text = " It was", .answers = {}}, {.text = " The dog", .answers = {}}}},
        {.context = "A girl had a ball.", .questions = {{.text = " She", .answers = {}}}}};
  }
  // The continuation of one prompt alone.
  std::string generated(const Engine& engine, const Tokenizer& tokenizer, std::size_t sample,
                        std::size_t question, bool after) const {
    const TaskPrompt prompt =
        encode_prompt({tokenizer}, samples_[sample], samples_[sample].questions[question], after);
    std::vector<std::int64_t> ids = prompt.context;
    ids.insert(ids.end(), prompt.question.begin(), prompt.question.end());
    GenerateOptions options;
    options.max_new_tokens = task_.max_new_tokens;
    Continuation continuation(tokenizer, ids, {});
    const GenerateResult result = generate(engine, {ids}, options);
    for (const std::int64_t token : result.sequences.front().tokens) {
      continuation.push(token);
    }
    continuation.finish();
    return continuation.text();
  }
  TemporaryDirectory directory_;
  std::filesystem::path model_ = directory_ / "model";
  Task task_;
  std::vector<TaskSample> samples_;
};

TEST_F(GreedyAnswers, AreThoseOfOnePromptAlone) {
  const Engine engine = Engine::load(model_, {.dtype = "float32", .kv_dtype = {}});
  const Tokenizer tokenizer = Tokenizer::load(model_);
  for (const bool after : {false, true}) {
    const auto outputs = greedy_answers(engine, {tokenizer}, task_, samples_, {}, after);
    ASSERT_EQ(outputs.size(), 2u);
    ASSERT_EQ(outputs[0].size(), 2u);
    EXPECT_EQ(outputs[0][0], generated(engine, tokenizer, 0, 0, after)) << after;
    EXPECT_EQ(outputs[0][1], generated(engine, tokenizer, 0, 1, after)) << after;
    EXPECT_EQ(outputs[1][0], generated(engine, tokenizer, 1, 0, after)) << after;
    EXPECT_NE(outputs[0][0], outputs[0][1]);
  }
}

TEST_F(GreedyAnswers, EndBeforeAStopToken) {
  const Engine engine = Engine::load(model_, {.dtype = "float32", .kv_dtype = {}});
  const Tokenizer tokenizer = Tokenizer::load(model_);
  const std::vector<TaskSample> one = {samples_[1]};
  const std::string whole = greedy_answers(engine, {tokenizer}, task_, one, {}, false)[0][0];
  std::vector<std::int64_t> all_ids;
  for (std::int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    all_ids.push_back(id);
  }
  EXPECT_EQ(greedy_answers(engine, {tokenizer}, task_, one, all_ids, false)[0][0], "");
  task_.max_new_tokens = 1;
  const std::string first = greedy_answers(engine, {tokenizer}, task_, one, {}, false)[0][0];
  EXPECT_TRUE(whole.starts_with(first));
  EXPECT_LT(first.size(), whole.size());
}

}  // namespace
}  // namespace kvc::testing
