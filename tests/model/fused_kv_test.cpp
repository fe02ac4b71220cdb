#include "model/fused_kv.h"

#include <gtest/gtest.h>

#include "model/rope.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;
using testing::tensors_identical;

constexpr std::int64_t kTokens = 7, kKvHeads = 2, kHeadDim = 8;

ModelConfig small_config() {
  return parse_model_config(
      testing::synthetic_config({.num_heads = 4, .num_kv_heads = kKvHeads, .head_dim = kHeadDim}),
      "test");
}

at::Tensor rows(std::uint64_t seed) { return random_normal({kTokens, kKvHeads, kHeadDim}, seed); }

Fusion tied_fusion(std::int64_t num_sources) {
  const at::Tensor pairs = random_normal({num_sources, kKvHeads, kHeadDim / 2}, 9);
  return {.form = FusionForm::kChannel, .weight = at::cat({pairs, pairs}, -1), .heads = {}};
}

// Scores of queries and keys at positions from `first` on, keys summed after RoPE.
at::Tensor scores_at(const ModelConfig& config, const Fusion& fusion, std::int64_t first) {
  const RopeTables rope(config, at::kFloat);
  const at::Tensor positions = at::arange(first, first + kTokens, at::kLong);
  const auto turned = [&](std::uint64_t seed) { return rope.rotate(0, rows(seed), positions); };
  const at::Tensor key = fuse(fusion, channel_pairs(config, 0), {turned(1), turned(2)});
  return at::einsum("ihd,jhd->hij", {turned(3), key});
}

TEST(FusedKv, PairsChannelsAsRopeTurnsThem) {
  ModelConfig config = small_config();
  EXPECT_TRUE(tensors_identical(channel_pairs(config, 0).first, at::arange(4, at::kLong)));
  EXPECT_TRUE(tensors_identical(channel_pairs(config, 0).second, at::arange(4, 8, at::kLong)));
  config.ropes[0].rotary_dim = 4;  // channels 0 and 2, 1 and 3 turn; the rest is paired 4-6, 5-7
  EXPECT_TRUE(
      tensors_identical(channel_pairs(config, 0).first, at::tensor({0, 1, 4, 5}, at::kLong)));
  EXPECT_TRUE(
      tensors_identical(channel_pairs(config, 0).second, at::tensor({2, 3, 6, 7}, at::kLong)));
  EXPECT_EQ(channel_pairs(config, 0).num_turned, 2);
}

TEST(FusedKv, OneHotVectorsReadOneSourceAsItIs) {
  const ModelConfig config = small_config();
  Fusion fusion{
      .form = FusionForm::kChannel, .weight = at::zeros({2, kKvHeads, kHeadDim}), .heads = {}};
  fusion.weight[1].fill_(1);
  EXPECT_TRUE(
      tensors_identical(fuse(fusion, channel_pairs(config, 0), {rows(1), rows(2)}), rows(2)));
}

// (1 + 2i)(3 + 4i) = -5 + 10i for a pair of channels half a head apart.
TEST(FusedKv, ComplexFactorsTurnPairs) {
  ModelConfig config = small_config();
  Fusion fusion{.form = FusionForm::kComplex,
                .weight = at::zeros({1, 2, kKvHeads, kHeadDim / 2}),
                .heads = {}};
  fusion.weight[0][0][1][2] = 1;
  fusion.weight[0][1][1][2] = 2;
  at::Tensor source = at::zeros({1, kKvHeads, kHeadDim});
  source[0][1][2] = 3;
  source[0][1][6] = 4;
  const at::Tensor fused = fuse(fusion, channel_pairs(config, 0), {source});
  EXPECT_EQ(fused[0][1][2].item<float>(), -5);
  EXPECT_EQ(fused[0][1][6].item<float>(), 10);
  EXPECT_EQ(fused.abs().sum().item<float>(), 15);
}

TEST(FusedKv, HeadsMayReadOthers) {
  const ModelConfig config = small_config();
  Fusion fusion{.form = FusionForm::kChannel,
                .weight = at::ones({1, kKvHeads, kHeadDim}),
                .heads = at::tensor({1, 1}, at::kLong).view({1, 2})};
  const at::Tensor fused = fuse(fusion, channel_pairs(config, 0), {rows(1)});
  EXPECT_TRUE(tensors_identical(fused.select(1, 0), rows(1).select(1, 1)));
}

// The fold is exact: 1e-12 in float64, forms channel and complex, partial RoPE too.
TEST(FusedKv, FoldedQueriesGiveTheScoresOfFusedKeys) {
  for (const std::int64_t rotary : {8, 4}) {
    ModelConfig config = small_config();
    config.ropes[0].rotary_dim = rotary;
    const ChannelPairs pairs = channel_pairs(config, 0);
    const at::Tensor query = random_normal({1, 4, kHeadDim}, 4).to(at::kDouble);
    for (const FusionForm form : {FusionForm::kChannel, FusionForm::kComplex}) {
      const std::vector<std::int64_t> shape =
          form == FusionForm::kChannel ? std::vector<std::int64_t>{2, kKvHeads, kHeadDim}
                                       : std::vector<std::int64_t>{2, 2, kKvHeads, kHeadDim / 2};
      const Fusion fusion{
          .form = form, .weight = random_normal(shape, 5).to(at::kDouble), .heads = {}};
      const std::vector<at::Tensor> sources = {rows(1).to(at::kDouble), rows(2).to(at::kDouble)};
      const auto scores = [&](const at::Tensor& q, const at::Tensor& key) {
        return at::einsum("khd,tkd->hkt", {q.view({kKvHeads, 2, kHeadDim}), key});
      };
      at::Tensor folded = scores(fold_query(fusion, pairs, 0, query), sources[0]) +
                          scores(fold_query(fusion, pairs, 1, query), sources[1]);
      EXPECT_TRUE(tensors_close(folded, scores(query, fuse(fusion, pairs, sources)), 1e-12));
    }
  }
}

// With one weight for both channels of a pair scores depend on distances alone; otherwise also on where.
TEST(FusedKv, ShiftingPositionsMattersToUntiedWeightsOnly) {
  const ModelConfig config = small_config();
  const Fusion tied = tied_fusion(2);
  EXPECT_TRUE(tensors_close(scores_at(config, tied, 0), scores_at(config, tied, 23), 1e-4));
  Fusion untied = tied;
  untied.weight = random_normal({2, kKvHeads, kHeadDim}, 9);
  EXPECT_GT(
      (scores_at(config, untied, 0) - scores_at(config, untied, 23)).abs().max().item<float>(),
      0.1f);
  const Fusion turned{.form = FusionForm::kComplex,
                      .weight = random_normal({2, 2, kKvHeads, kHeadDim / 2}, 9),
                      .heads = {}};
  EXPECT_TRUE(tensors_close(scores_at(config, turned, 0), scores_at(config, turned, 23), 1e-4));
}

TEST(FusedKv, LayersReadThoseOfTheirRopeAndAWindowNoShorter) {
  ModelConfig config = small_config();
  config.ropes.push_back(config.ropes[0]);
  config.layers[0].window = 16;
  config.layers[1].rope = 1;
  EXPECT_FALSE(can_read(config, 3, 0));
  EXPECT_FALSE(can_read(config, 3, 1));
  EXPECT_TRUE(can_read(config, 3, 2));
  EXPECT_TRUE(can_read(config, 0, 2));
}

}  // namespace
}  // namespace kvc
