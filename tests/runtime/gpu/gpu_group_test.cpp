// Steps of latent groups: what leaves the window merges as in the CPU's engine.
#include <gtest/gtest.h>

#include "runtime/gpu/gpu_engine.h"
#include "runtime/gpu/gpu_forecast.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/gpu_fixture.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

using testing::expect_gpu_steps;
using testing::grouped_plan;
using testing::small_policy;
using testing::SyntheticCheckpoint;
using testing::tiny_gpu_model;

constexpr int kSteps = 7;  // more than a block

CompressionSettings policy_of(MergeRule rule, double target,
                              UnmergedForm unmerged = UnmergedForm::kPlain) {
  CompressionSettings policy = small_policy(rule);
  policy.target_kept_ratio = target;
  policy.unmerged = unmerged;
  return policy;
}

// Most of whose tokens merge.
void write_merging_checkpoint(const std::filesystem::path& directory) {
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  testing::write_factored_checkpoint(directory, model,
                                     grouped_plan(model, 2, 40, policy_of(MergeRule::kLs, 0.1)));
}

void expect_group_steps(const std::string& model_type, int layers_per_group, std::int64_t rank,
                        const CompressionSettings& policy) {
  const SyntheticCheckpoint model = tiny_gpu_model(model_type);
  expect_gpu_steps({.model = model,
                    .plan = grouped_plan(model, layers_per_group, rank, policy),
                    .longest = 48,
                    .num_steps = kSteps});
}

TEST(GpuGroup, MergesByLeastSquares) {
  expect_group_steps("llama", 2, 40, policy_of(MergeRule::kLs, 0.1));
}

TEST(GpuGroup, MergesTheBestTokens) {
  expect_group_steps("llama", 2, 40, policy_of(MergeRule::kLs, 0.8));
}

TEST(GpuGroup, MergesByWeights) {
  expect_group_steps("llama", 2, 40, policy_of(MergeRule::kMean, 0.1));
}

TEST(GpuGroup, AddsBiases) { expect_group_steps("qwen2", 2, 40, policy_of(MergeRule::kLs, 0.1)); }

TEST(GpuGroup, UndoesKeyNorms) {
  expect_group_steps("qwen3", 2, 40, policy_of(MergeRule::kLs, 0.1));
}

TEST(GpuGroup, KeepsUnmergedTokensAsLatents) {
  expect_group_steps("llama", 2, 40, policy_of(MergeRule::kLs, 0.6, UnmergedForm::kLatent));
}

TEST(GpuGroup, NormsKeysOfOwnLatents) {
  expect_group_steps("qwen3", 1, 40, policy_of(MergeRule::kMean, 0.6, UnmergedForm::kLatent));
}

TEST(GpuGroup, KeepsLatentsOfEveryLayer) {
  CompressionSettings policy = policy_of(MergeRule::kNone, 0.5, UnmergedForm::kLatent);
  expect_group_steps("llama", 2, 40, policy);
}

TEST(GpuGroup, AttendsThroughTruncatedFactors) {
  CompressionSettings policy = policy_of(MergeRule::kLs, 0.1);
  policy.prefill = PrefillMode::kTruncated;
  expect_group_steps("llama", 2, 40, policy);
}

// One group of two is merged at the prompt's end.
TEST(GpuGroup, MergesGroupsAsAWhole) {
  SyntheticCheckpoint model = tiny_gpu_model("llama");
  model.num_layers = 4;
  CompressionSettings policy = policy_of(MergeRule::kLs, 0.7, UnmergedForm::kLatent);
  policy.granularity = Granularity::kGroup;
  expect_gpu_steps({.model = model,
                    .plan = grouped_plan(model, 2, 40, policy),
                    .prompt = 110,
                    .longest = 118,
                    .num_steps = kSteps});
}

void expect_window_steps(const char* model_type, std::int64_t window,
                         KvPlan (*plan_of)(const SyntheticCheckpoint&)) {
  SyntheticCheckpoint model = tiny_gpu_model(model_type);
  model.window = window;
  expect_gpu_steps(
      {.model = model, .plan = plan_of(model), .prompt = 110, .longest = 118, .num_steps = 4});
}

// Some of the decided tokens are hidden, merged and unmerged ones in both forms.
TEST(GpuGroup, ReadsWhatASlidingWindowShows) {
  expect_window_steps("mistral", 60, [](const SyntheticCheckpoint& model) {
    return grouped_plan(model, 2, 40, policy_of(MergeRule::kLs, 0.75));
  });
  expect_window_steps("mistral", 60, [](const SyntheticCheckpoint& model) {
    return grouped_plan(model, 2, 40, policy_of(MergeRule::kMean, 0.68, UnmergedForm::kLatent));
  });
}

// For one layer in two, tokens that stand in a row; in the last case some of those that are pending too.
TEST(GpuGroup, ReadsWhatASlidingWindowShowsOfRuns) {
  expect_window_steps("gemma2", 60, [](const SyntheticCheckpoint& model) {
    return grouped_plan(model, 1, 40, policy_of(MergeRule::kNone, 0.5, UnmergedForm::kLatent));
  });
  expect_window_steps("mistral", 60, [](const SyntheticCheckpoint& model) {
    return testing::split_plan(model, 24, 40);
  });
  for (const std::int64_t window : {60, 4}) {
    expect_window_steps("mistral", window, [](const SyntheticCheckpoint& model) {
      return testing::principal_plan(model, 2, LatentBasis::kCalibrated, false, 64, 80);
    });
  }
}

TEST(GpuGroup, ReadsLatentsThatReplaceProjections) {
  for (const char* model_type : {"llama", "qwen2", "qwen3"}) {
    const SyntheticCheckpoint model = tiny_gpu_model(model_type);
    expect_gpu_steps({.model = model, .plan = testing::split_plan(model, 24, 40), .longest = 48});
  }
}

TEST(GpuGroup, ProjectsOnCalibratedDirections) {
  for (const bool joint : {false, true}) {
    const SyntheticCheckpoint model = tiny_gpu_model("qwen3");
    KvPlan plan = testing::principal_plan(model, 2, LatentBasis::kCalibrated, joint, 64, 80);
    plan.compression.sink_tokens = 2;
    plan.compression.window_tokens = 6;
    plan.compression.block_tokens = 5;
    expect_gpu_steps({.model = model, .plan = plan, .longest = 48, .num_steps = kSteps});
  }
}

KvPlan request_plan(const SyntheticCheckpoint& model, bool joint, std::int64_t rank) {
  KvPlan plan = testing::principal_plan(model, 2, LatentBasis::kRequest, joint, rank, rank + 8);
  plan.check();
  return plan;
}

// Both prompts have a basis; then only one, the other's tokens are too few.
TEST(GpuGroup, FindsDirectionsOfEveryRequest) {
  for (const char* model_type : {"llama", "qwen3"}) {
    for (const bool joint : {false, true}) {
      const SyntheticCheckpoint model = tiny_gpu_model(model_type);
      testing::GpuCase test_case{
          .model = model, .plan = request_plan(model, joint, 8), .longest = 74, .num_steps = 3};
      test_case.texts = {testing::gpu_text(70, 3), testing::gpu_text(joint ? 9 : 50, 11)};
      expect_gpu_steps(test_case);
    }
  }
}

// The same solver that starts from signs; generated tokens leave the window and are projected.
TEST(GpuGroup, ProjectsGeneratedTokensOnTheRequestsDirections) {
  const SyntheticCheckpoint model = tiny_gpu_model("qwen2");
  KvPlan plan = request_plan(model, false, 8);
  plan.request->solver = BasisSolver::kSubspace;
  plan.request->compress_generated = true;
  plan.request->later = LaterTokens::kProject;
  plan.compression.block_tokens = break_even_tokens(plan, KvDtype::kFloat16);
  const auto block = static_cast<int>(plan.compression.block_tokens);
  ASSERT_LT(block, 20);
  testing::GpuCase test_case{
      .model = model, .plan = plan, .longest = 64 + block, .num_steps = block + 1};
  test_case.texts = {testing::gpu_text(62, 3), testing::gpu_text(9, 11)};
  expect_gpu_steps(test_case);
}

// Blocks of generated tokens get directions of their own, a new one every ten to thirty tokens.
KvPlan segments_plan(const SyntheticCheckpoint& model) {
  KvPlan plan = request_plan(model, false, 8);
  plan.request->compress_generated = true;
  plan.request->later = LaterTokens::kNewSegment;
  plan.compression.block_tokens = break_even_tokens(plan, KvDtype::kFloat16);
  EXPECT_LT(plan.compression.block_tokens, 30);
  return plan;
}

// Which a further prompt reads too.
TEST(GpuGroup, FindsDirectionsOfGeneratedTokens) {
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  KvPlan plan = segments_plan(model);
  plan.request->solver = BasisSolver::kSubspace;
  const auto block = static_cast<int>(plan.compression.block_tokens);
  testing::GpuCase test_case{
      .model = model, .plan = plan, .longest = 64 + block, .num_steps = block + 1};
  test_case.texts = {testing::gpu_text(62, 3), testing::gpu_text(9, 11)};
  test_case.turn = 40;
  expect_gpu_steps(test_case);
}

// The program is built anew where there is another basis.
TEST(GpuGroup, GeneratesBehindDirectionsOfGeneratedTokens) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  const KvPlan plan = segments_plan(model);
  testing::write_factored_checkpoint(directory.path(), model, plan);
  GenerateOptions options;
  options.max_new_tokens = plan.compression.block_tokens + 4;
  const GpuEngine engine = testing::emulated_engine(directory.path());
  const auto [expected, result] =
      testing::expect_same_tokens(directory.path(), engine, {testing::gpu_text(62, 3)}, options);
  const std::int64_t basis = 2 * plan.kv_dim() * (8 + 16) * 2;  // of both layers
  EXPECT_GT(result.sequences[0].bytes.merged, 2 * basis);
  EXPECT_LE(engine.kv_peak_bytes(),
            gpu_cache_bytes(engine.plan(), KvDtype::kFloat16, 32, {62}, options.max_new_tokens));
}

// Generation, samples included: a sample's cache is a copy; forecasts bound what is taken.
TEST(GpuGroup, GeneratesTheEnginesTokens) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  write_merging_checkpoint(directory.path());
  const Engine::Ids prompts = {testing::gpu_text(40, 1), testing::gpu_text(6, 5)};
  GenerateOptions options;
  options.max_new_tokens = 9;
  options.num_samples = 2;
  const GpuEngine engine = testing::emulated_engine(directory.path());
  const GenerateResult result =
      testing::expect_same_tokens(directory.path(), engine, prompts, options).result;
  ASSERT_EQ(result.sequences.size(), 4u);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_GT(result.sequences[i].bytes.pending, 0);
    bytes += result.sequences[i].bytes.total();
  }
  EXPECT_GT(result.sequences[0].bytes.merged, 0);
  EXPECT_LE(bytes, engine.kv_peak_bytes());
  EXPECT_LE(engine.kv_peak_bytes(),
            gpu_cache_bytes(engine.plan(), KvDtype::kFloat16, 32, {40, 40, 6, 6}, 9));
}

// What is fed in steps reads the compressed cache, and blocks of it are decided.
TEST(GpuGroup, ReadsTheRestOfPromptsInSteps) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  write_merging_checkpoint(directory.path());
  GenerateOptions options;
  options.max_new_tokens = 4;
  options.prefill_tokens = 20;
  const GpuEngine engine = testing::emulated_engine(directory.path());
  const auto [expected, result] =
      testing::expect_same_tokens(directory.path(), engine, {testing::gpu_text(34, 1)}, options);
  EXPECT_EQ(result.sequences[0].bytes.merged, expected.sequences[0].bytes.merged);
  EXPECT_LE(engine.kv_peak_bytes(),
            gpu_cache_bytes(engine.plan(), KvDtype::kFloat16, 32, {20}, 18));
}

}  // namespace
}  // namespace kvc
