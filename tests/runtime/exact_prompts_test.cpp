// Which caches change nothing of the prompt that fills them (Engine::reads_prompts_exactly).
#include <gtest/gtest.h>

#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/policy_turns.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::exact_prompts_test {
namespace {

using testing::coded_plan;
using testing::CodedScope;
using testing::kRounding;
using testing::principal_plan;
using testing::small_policy;
using testing::SyntheticCheckpoint;

struct Case {
  std::string name;
  KvPlan plan;
  EngineOptions options{};
};

const SyntheticCheckpoint kModel{.model_type = "llama"};

// Ranks and codes so small that whatever reads through them differs.
std::vector<Case> exact_cases() {
  std::vector<Case> cases;
  for (const CodedScope scope : {CodedScope::kHead, CodedScope::kLayer, CodedScope::kGroup}) {
    cases.push_back({fmt::format("codes of scope {}", static_cast<int>(scope)),
                     coded_plan(kModel, {.scope = scope, .coefficients = {0, 0, 6}})});
  }
  for (const LatentBasis basis : {LatentBasis::kCalibrated, LatentBasis::kRequest}) {
    cases.push_back(
        {"directions, " + to_string(basis), principal_plan(kModel, 2, basis, false, 2, 2)});
  }
  for (const MergeRule rule : {MergeRule::kNone, MergeRule::kMean, MergeRule::kLs}) {
    cases.push_back({"latents, rule " + to_string(rule),
                     testing::grouped_plan(kModel, 2, 8, small_policy(rule))});
  }
  cases.push_back({"pairs", testing::paired_plan(kModel)});
  const KvPlan plain = plain_plan(kModel.num_layers, kModel.num_kv_heads, kModel.head_dim);
  for (const char* dtype : {"float16", "int8", "int2"}) {
    cases.push_back({dtype, plain, testing::cache_of(dtype)});
  }
  for (const char* policy :
       {"streamingllm:sink=2,window=8", "streamingllm:sink=2,window=8,pos=cache", "h2o:budget=16",
        "snapkv:budget=40", "zeromerge:budget=16", "think"}) {
    cases.push_back({policy, plain, testing::under(policy)});
  }
  return cases;
}

// Expects the prompt to give the plain model's logits, or not, and the engine to say which.
void expect_exact(const Case& of, bool exact) {
  const testing::Row ids = testing::random_ids(1, 120, kModel.vocab_size, 5).front();
  const auto engine = testing::load(kModel, of.plan, of.options);
  EXPECT_EQ(engine->reads_prompts_exactly(), exact) << of.name;
  Sequence sequence = engine->new_sequence();
  const at::Tensor logits = engine->prefill({&sequence}, {ids}, Engine::Rows::kAll).front();
  EXPECT_EQ(bool(testing::tensors_close(logits, testing::plain_logits(kModel, ids), kRounding)),
            exact)
      << of.name;
}

TEST(ExactPrompts, AreTheModelsWhateverTheCacheKeeps) {
  const testing::OneThread one;
  for (Case& of : exact_cases()) {
    expect_exact(of, true);
    of.options.prefill_chunk = 32;  // later pieces read the whole prompt, not what the cache keeps
    expect_exact(of, true);
  }
}

TEST(ExactPrompts, AreNotThoseOfReplacedProjectionsAndCodes) {
  const testing::OneThread one;
  CompressionSettings truncated = small_policy(MergeRule::kNone);
  truncated.prefill = PrefillMode::kTruncated;
  EngineOptions in_chunks = testing::under("h2o:budget=16,compress-at=chunk");
  in_chunks.prefill_chunk = 32;
  const Case cases[] = {
      {"codes", coded_plan(kModel, {.coefficients = {0, 0, 6}, .codes_prompts = true})},
      {"truncated latents", testing::grouped_plan(kModel, 2, 8, truncated)},
      {"split latents", testing::split_plan(kModel, 2, 2)},
      {"fused layers", testing::fused_upper_plan(kModel, FusionForm::kChannel, 2)},
      {"tokens that leave between chunks",
       plain_plan(kModel.num_layers, kModel.num_kv_heads, kModel.head_dim), in_chunks}};
  for (const Case& of : cases) {
    expect_exact(of, false);
  }
}

}  // namespace
}  // namespace kvc::exact_prompts_test
