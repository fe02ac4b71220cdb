// Further prompts behind what steps have generated: their logits, the cache they leave and the steps behind them are those of
// the CPU's engine.
#include <gtest/gtest.h>

#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/gpu_fixture.h"

namespace kvc {
namespace {

using testing::CodedScope;
using testing::expect_gpu_steps;
using testing::GpuCase;
using testing::SyntheticCheckpoint;
using testing::tiny_gpu_model;

SyntheticCheckpoint model_of(const std::string& model_type, int num_layers = 2,
                             std::int64_t window = 60) {
  SyntheticCheckpoint model = tiny_gpu_model(model_type);
  model.num_layers = num_layers;
  model.window = window;
  return model;
}

// The texts grow from 31 and 9 tokens over 35 and 13 to 61 and 20, past the next page.
GpuCase further(const SyntheticCheckpoint& model, const std::optional<KvPlan>& plan = {}) {
  GpuCase test_case{.model = model, .plan = plan};
  test_case.longest = 36;
  test_case.turn = 26;
  return test_case;
}

TEST(GpuFurtherPrompt, IsReadBehindPlainLayers) {
  for (const char* model_type : {"llama", "qwen3", "gemma2"}) {
    expect_gpu_steps(further(model_of(model_type, 2, 20)));
  }
}

TEST(GpuFurtherPrompt, IsReadBehindFusedLayers) {
  const SyntheticCheckpoint model = model_of("llama", 4);
  expect_gpu_steps(further(model, testing::fused_upper_plan(model, FusionForm::kChannel, 2)));
}

// Tokens that were decided, in each form, and those that leave the window with the further prompt.
TEST(GpuFurtherPrompt, IsReadBehindLatents) {
  const auto expect = [](const char* model_type, MergeRule rule, UnmergedForm unmerged) {
    CompressionSettings policy = testing::small_policy(rule);
    policy.target_kept_ratio = 0.65;
    policy.unmerged = unmerged;
    const SyntheticCheckpoint model = model_of(model_type);
    GpuCase test_case = further(model, testing::grouped_plan(model, 2, 40, policy));
    test_case.num_steps = 7;
    test_case.longest = 39;
    expect_gpu_steps(test_case);
  };
  expect("qwen3", MergeRule::kLs, UnmergedForm::kPlain);
  expect("qwen2", MergeRule::kLs, UnmergedForm::kLatent);
  expect("qwen2", MergeRule::kMean, UnmergedForm::kPlain);
  expect("qwen3", MergeRule::kMean, UnmergedForm::kLatent);
}

TEST(GpuFurtherPrompt, IsReadBehindLatentsThatReplaceProjections) {
  const SyntheticCheckpoint model = model_of("mistral");
  expect_gpu_steps(further(model, testing::split_plan(model, 24, 40)));
}

TEST(GpuFurtherPrompt, IsReadBehindCalibratedDirections) {
  const SyntheticCheckpoint model = model_of("qwen3");
  KvPlan plan = testing::principal_plan(model, 2, LatentBasis::kCalibrated, false, 64, 80);
  plan.compression.sink_tokens = 2;
  plan.compression.window_tokens = 6;
  plan.compression.block_tokens = 5;
  expect_gpu_steps(further(model, plan));
}

// It stays exact, or is projected on the directions of the first; the shorter text has none yet.
TEST(GpuFurtherPrompt, IsReadBehindDirectionsOfTheRequest) {
  for (const LaterTokens later : {LaterTokens::kExact, LaterTokens::kProject}) {
    const SyntheticCheckpoint model = model_of("llama");
    KvPlan plan = testing::principal_plan(model, 2, LatentBasis::kRequest, false, 8, 16);
    plan.request->later = later;
    plan.check();
    GpuCase test_case = further(model, plan);
    test_case.texts = {testing::gpu_text(70, 3), testing::gpu_text(9, 11)};
    test_case.longest = 75;
    expect_gpu_steps(test_case);
  }
}

// Codes of every width and scope, with the token's gain, are read as tensors.
TEST(GpuFurtherPrompt, IsReadBehindCodes) {
  for (const CodedScope scope : {CodedScope::kHead, CodedScope::kLayer, CodedScope::kGroup}) {
    const SyntheticCheckpoint model = model_of("llama");
    GpuCase test_case =
        further(model, testing::coded_plan(model, {.scope = scope,
                                                   .coefficients = {0, 2, 3, 2, 25, 1, 2, 1, 1},
                                                   .gain = scope != CodedScope::kLayer}));
    test_case.prompt = 70;
    test_case.longest = 75;
    test_case.turn = 40;
    expect_gpu_steps(test_case);
  }
}

TEST(GpuFurtherPrompt, IsReadBehindCodesWithoutSinks) {
  const SyntheticCheckpoint model = model_of("llama");
  KvPlan plan = testing::coded_plan(
      model, {.scope = CodedScope::kHead, .coefficients = {0, 0, 0, 0, 25, 1, 2, 1, 1}});
  plan.compression.sink_tokens = 0;
  GpuCase test_case = further(model, plan);
  test_case.prompt = 70;
  test_case.longest = 75;
  test_case.turn = 40;
  expect_gpu_steps(test_case);
}

TEST(GpuFurtherPrompt, IsReadBehindIntegers) {
  for (const KvDtype kv_dtype : {KvDtype::kInt8, KvDtype::kInt4}) {
    GpuCase test_case = further(model_of("mistral", 2, 150));
    test_case.prompt = 190;
    test_case.longest = 195;
    test_case.turn = 40;
    test_case.kv_dtype = kv_dtype;
    expect_gpu_steps(test_case);
  }
}

}  // namespace
}  // namespace kvc
