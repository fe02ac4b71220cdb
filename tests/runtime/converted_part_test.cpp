// Engines that convert one part of a plan's layers alone, against checkpoints that hold this part alone.
#include <gtest/gtest.h>

#include "core/kv_plan_parts.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::cached_logits;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_identical;

constexpr std::size_t kPrompt = 30, kChunk = 4;

Row some_ids() { return testing::random_ids(1, 60, 96, 1).front(); }

at::Tensor logits_of(const Engine& engine) {
  return cached_logits(engine, some_ids(), kPrompt, kChunk);
}

TEST(ConvertedPart, IsThatOfACheckpointWithThisPartAlone) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  CompressionSettings latents = testing::small_policy(MergeRule::kNone);
  latents.unmerged = UnmergedForm::kLatent;
  const KvPlan plans[] = {
      testing::grouped_plan(model, 2, 12, testing::small_policy(MergeRule::kLs)),
      testing::grouped_plan(model, 2, 12, latents), testing::split_plan(model, 6, 9),
      testing::fused_upper_plan(model, FusionForm::kChannel, 2)};
  const auto original = testing::load_plain(model);
  for (const KvPlan& plan : plans) {
    const auto converted = testing::load(model, plan);
    const std::vector<LayerRange> parts = parts_of(plan);
    ASSERT_GE(parts.size(), 2U);
    for (const LayerRange& part : parts) {
      const auto expected = testing::load(model, with_part_only(plan, part));
      const Engine alone = Engine::with_part(*original, *converted, part);
      Sequence sequence = alone.new_sequence();
      EXPECT_TRUE(tensors_identical(cached_logits(alone, some_ids(), kPrompt, kChunk, sequence),
                                    logits_of(*expected)))
          << plan.method << ", from layer " << part.first;
      testing::expect_exact_bytes(alone, sequence);
    }
  }
}

// Random bases of coded blocks depend on their number: the first one's stay.
TEST(ConvertedPart, TakesItsOwnCodes) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const auto original = testing::load_plain(model);
  for (const testing::CodedScope scope :
       {testing::CodedScope::kHead, testing::CodedScope::kLayer, testing::CodedScope::kGroup}) {
    const KvPlan plan = testing::coded_plan(model, {.scope = scope});
    const auto converted = testing::load(model, plan);
    const LayerRange first = parts_of(plan).front();
    EXPECT_TRUE(tensors_identical(logits_of(Engine::with_part(*original, *converted, first)),
                                  logits_of(*testing::load(model, with_part_only(plan, first)))));
  }
}

TEST(ConvertedPart, OneOfCoarseCodesCostsMost) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const auto original = testing::load_plain(model);
  KvPlan plan = testing::coded_plan(model, {.scope = testing::CodedScope::kLayer});
  auto& coefficients = plan.coded[2].coefficients;
  std::swap(coefficients[1], coefficients[8]);
  const auto converted = testing::load(model, plan);
  const at::Tensor exact = logits_of(*original);
  std::vector<double> errors;
  for (const LayerRange& part : parts_of(plan)) {
    const Engine alone = Engine::with_part(*original, *converted, part);
    errors.push_back((logits_of(alone) - exact).abs().max().item<double>());
  }
  ASSERT_EQ(errors.size(), 4U);
  for (const std::size_t fine : {0, 1, 3}) {
    EXPECT_GT(errors[fine], 0);
    EXPECT_GT(errors[2], 5 * errors[fine]);
  }
}

TEST(ConvertedPart, OfAConversionWithOnePartIsTheWhole) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const KvPlan plan = testing::principal_plan(model, 4, LatentBasis::kCalibrated, true, 10, 10);
  const auto converted = testing::load(model, plan);
  ASSERT_EQ(parts_of(plan).size(), 1U);
  EXPECT_TRUE(tensors_identical(
      logits_of(Engine::with_part(*testing::load_plain(model), *converted, {0, 4})),
      logits_of(*converted)));
}

}  // namespace
}  // namespace kvc
