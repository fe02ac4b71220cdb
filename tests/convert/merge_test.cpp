#include "convert/latent/merging.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::merge_test {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using testing::tensors_close;

at::Tensor random_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  return testing::random_normal({rows, columns}, seed).to(at::kDouble);
}

LatentGroup layers(int first, int count) {
  LatentGroup group;
  group.first_layer = first;
  group.num_layers = count;
  return group;
}

TEST(MergeWeights, AreSharesWithinTheGroup) {
  const LatentGroup group = layers(1, 3);
  EXPECT_THAT(merge_weights(group, {9, 1, 2, 1, 9}),
              ElementsAre(DoubleEq(0.25), DoubleEq(0.5), DoubleEq(0.25)));
}

TEST(MergeWeights, AreEqualWithoutAnyScore) {
  const LatentGroup group = layers(0, 2);
  EXPECT_THAT(merge_weights(group, {0, 0}), ElementsAre(DoubleEq(0.5), DoubleEq(0.5)));
}

TEST(MergeWeights, RefuseMissingOrNegativeScores) {
  const LatentGroup group = layers(2, 2);
  EXPECT_THROW(merge_weights(group, {1, 1, 1}), Error);
  EXPECT_THROW(merge_weights(group, {1, 1, -1, 1}), Error);
}

TEST(Sensitivity, ScoresEveryLayerReproducibly) {
  const testing::TemporaryDirectory directory;
  testing::SyntheticCheckpoint options;
  testing::write_synthetic_checkpoint(directory / "model", options);
  const Checkpoint checkpoint = Checkpoint::open(directory / "model");
  TokenSet tokens;
  tokens.sequences = testing::random_ids(2, 24, options.vocab_size, 1);
  const std::vector<double> scores = sensitivity_scores(checkpoint, tokens, 5);
  EXPECT_EQ(scores.size(), 4u);
  EXPECT_THAT(scores, ::testing::Each(::testing::Ge(0)));
  EXPECT_EQ(scores, sensitivity_scores(checkpoint, tokens, 5));
  EXPECT_NE(scores, sensitivity_scores(checkpoint, tokens, 6));
}

class LsEncoder : public ::testing::Test {
 protected:
  GroupFactorization factors = factorize_group(random_matrix(32, 20, 1), {}, 9);
  at::Tensor b = factors.reconstruct_proj;
  at::Tensor weights = random_matrix(32, 1, 2).flatten().square().add(0.01);

  double weighted_error(const at::Tensor& y, const at::Tensor& h) const {
    return (y - at::mm(h, b.t())).square().mul(weights).sum().item<double>();
  }
};

TEST_F(LsEncoder, InvertsB) {
  EXPECT_TRUE(
      tensors_close(at::mm(ls_encoder(factors, weights), b), at::eye(9, at::kDouble), 1e-10));
}

TEST_F(LsEncoder, EqualWeightsChangeNothing) {
  const at::Tensor equal = at::full({32}, 3.0, at::kDouble);
  EXPECT_TRUE(tensors_close(ls_encoder(factors, equal), ls_encoder(factors, {}), 1e-10));
}

TEST_F(LsEncoder, NoOtherLatentHasASmallerWeightedError) {
  const at::Tensor y = random_matrix(10, 32, 3);
  const at::Tensor h = at::mm(y, ls_encoder(factors, weights).t());
  const double best = weighted_error(y, h);
  EXPECT_GT(weighted_error(y, at::mm(y, ls_encoder(factors, {}).t())), best);
  EXPECT_GT(weighted_error(y, h + 1e-3 * random_matrix(10, 9, 4)), best);
}

TEST(LsChannelWeights, AreTheGroupsChannelsBoundedBelow) {
  // Two layers of kv_dim 2; the group is the second one. Relative to the mean of the group, 2.5.
  const std::vector<double> fisher = {7, 7, 7, 7, 4, 0, 3, 3};
  const at::Tensor weights = ls_channel_weights(layers(1, 1), fisher, 2).mul(2.5);
  EXPECT_TRUE(tensors_close(weights, at::tensor({4.0, 0.002, 3.0, 3.0}, at::kDouble), 1e-12));
}

TEST(LsChannelWeights, AreEqualWithoutInformation) {
  const at::Tensor weights = ls_channel_weights(layers(0, 1), {0, 0}, 1);
  EXPECT_TRUE(tensors_close(weights, at::ones({2}, at::kDouble), 0));
}

}  // namespace
}  // namespace kvc::merge_test
