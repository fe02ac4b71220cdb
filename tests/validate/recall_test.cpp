#include "validate/recall_task.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "validate/tasks/recall.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kModel = std::filesystem::path(KVC_TEST_DATA) / "reference-llama";

std::string decode(const Tokenizer& tokenizer, const RecallPrompt& prompt, std::int64_t first,
                   std::int64_t count) {
  return tokenizer.decode({prompt.ids.begin() + first, prompt.ids.begin() + first + count});
}

TEST(Recall, AsksForEveryFactOnce) {
  const Tokenizer tokenizer = Tokenizer::load(kModel);
  const RecallPrompt prompt = make_recall_prompt(tokenizer, 7);
  EXPECT_EQ(prompt.ids, make_recall_prompt(tokenizer, 7).ids);
  EXPECT_NE(prompt.ids, make_recall_prompt(tokenizer, 8).ids);
  ASSERT_EQ(prompt.answers.size(), 20u);
  const std::string facts = decode(tokenizer, prompt, 0, prompt.num_facts_ids);
  EXPECT_THAT(facts, HasSubstr("Remember: "));
  for (const auto& [first, count] : prompt.answers) {
    EXPECT_GE(first, prompt.num_facts_ids);
    // The thing and its number stand side by side among the facts too.
    const std::string number = decode(tokenizer, prompt, first, count);
    const std::string asked =
        decode(tokenizer, prompt, prompt.num_facts_ids, first + count - prompt.num_facts_ids);
    const std::size_t comma = asked.find_last_of(",:", asked.size() - number.size() - 1);
    EXPECT_THAT(facts, HasSubstr(asked.substr(comma + 1)));
  }
}

TEST(Recall, TheReferenceModelRemembers) {
  EngineOptions options;
  options.dtype = "float32";
  Engine reference = Engine::load(kModel, options);
  Engine candidate = Engine::load(kModel, options);
  const Recall recall =
      compare_recall(reference, candidate, Tokenizer::load(kModel), 3, /*seed=*/0);
  EXPECT_EQ(recall.num_asked, 60);
  EXPECT_GE(recall.reference_right, 54);
  EXPECT_EQ(recall.candidate_right, recall.reference_right);
}

}  // namespace
}  // namespace kvc
