#include "convert/fusion/fusion_fit.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

constexpr std::int64_t kTokens = 400, kKvHeads = 2, kHeadDim = 8;

// Keys and values of layers 0 to 3: 0 to 2 random, 3 what a test makes of them.
class FusionFitTest : public ::testing::Test {
 protected:
  FusionFitTest()
      : config_(parse_model_config(
            testing::synthetic_config(
                {.num_heads = 4, .num_kv_heads = kKvHeads, .head_dim = kHeadDim}),
            "test")) {
    for (int layer = 0; layer < 3; ++layer) {
      rows_[layer] =
          random_normal({kTokens, kKvHeads, kHeadDim}, 10 + static_cast<std::uint64_t>(layer))
              .to(at::kDouble) +
          0.5 * layer;
    }
  }

  FusionMoments moments(ProductScope scope) const {
    FusionMoments moments(config_, scope);
    for (const int a : {0, 1, 2}) {
      moments.want(3, a);
      for (const int b : {0, 1, 2}) {
        moments.want(a, b);
      }
    }
    for (int layer = 0; layer < 4; ++layer) {
      moments.add(layer, [&](KvPart, int of) { return rows_.at(of); });
    }
    moments.count_tokens(kTokens);
    return moments;
  }
  at::Tensor fused(const Fusion& fusion, const std::vector<int>& sources) const {
    std::vector<at::Tensor> rows;
    for (const int source : sources) {
      rows.push_back(rows_.at(source));
    }
    return fuse(fusion, channel_pairs(config_, 3), rows);
  }
  static at::Tensor tied(std::uint64_t seed) {
    const at::Tensor pairs = random_normal({2, kKvHeads, kHeadDim / 2}, seed).to(at::kDouble);
    return at::cat({pairs, pairs}, -1);
  }
  // R^2 by hand.
  double r2(const at::Tensor& fitted) const {
    const at::Tensor& rows = rows_.at(3);
    return 1 - ((rows - fitted).square().sum() / (rows - rows.mean(0, true)).square().sum())
                   .item<double>();
  }

  ModelConfig config_;
  std::map<int, at::Tensor> rows_;
};

TEST_F(FusionFitTest, RecoversTiedVectors) {
  const Fusion truth{.form = FusionForm::kChannel, .weight = tied(1), .heads = {}};
  rows_[3] = fused(truth, {0, 2});
  const FusionFit fit = fit_vectors(moments(ProductScope::kSameHead), KvPart::kKey, 3, {0, 2},
                                    FusionForm::kChannel, HeadMap::kSame);
  EXPECT_TRUE(tensors_close(fit.weight, truth.weight, 1e-4));
  EXPECT_NEAR(fit.r2, 1, 1e-8);
}

TEST_F(FusionFitTest, ValuesNeedNoTies) {
  const Fusion truth{.form = FusionForm::kChannel,
                     .weight = random_normal({2, kKvHeads, kHeadDim}, 2).to(at::kDouble),
                     .heads = {}};
  rows_[3] = fused(truth, {0, 1});
  const FusionMoments sums = moments(ProductScope::kSameHead);
  const auto fit = [&](KvPart part) {
    return fit_vectors(sums, part, 3, {0, 1}, FusionForm::kChannel, HeadMap::kSame);
  };
  EXPECT_TRUE(tensors_close(fit(KvPart::kValue).weight, truth.weight, 1e-4));
  const FusionFit keys = fit(KvPart::kKey);  // both channels of a pair get one weight
  EXPECT_TRUE(tensors_close(keys.weight.narrow(-1, 0, 4), keys.weight.narrow(-1, 4, 4), 1e-12));
  EXPECT_LT(keys.r2, 0.95);
  EXPECT_NEAR(keys.r2,
              r2(fused({.form = FusionForm::kChannel, .weight = keys.weight, .heads = {}}, {0, 1})),
              1e-9);
}

TEST_F(FusionFitTest, RecoversComplexFactors) {
  const Fusion truth{.form = FusionForm::kComplex,
                     .weight = random_normal({2, 2, kKvHeads, kHeadDim / 2}, 3).to(at::kDouble),
                     .heads = {}};
  rows_[3] = fused(truth, {1, 2});
  const FusionMoments sums = moments(ProductScope::kSameHead);
  const FusionFit fit =
      fit_vectors(sums, KvPart::kKey, 3, {1, 2}, FusionForm::kComplex, HeadMap::kSame);
  EXPECT_TRUE(tensors_close(fit.weight, truth.weight, 1e-4));
  EXPECT_NEAR(fit.r2, 1, 1e-8);
  EXPECT_LT(fit_vectors(sums, KvPart::kKey, 3, {1, 2}, FusionForm::kChannel, HeadMap::kSame).r2,
            0.9);
}

TEST_F(FusionFitTest, SearchFindsSourcesAndHeads) {
  const Fusion truth{.form = FusionForm::kChannel,
                     .weight = tied(4),
                     .heads = at::tensor({1, 0, 1, 1}, at::kLong).view({2, 2})};
  rows_[3] = fused(truth, {1, 2});
  const FusionMoments sums = moments(ProductScope::kAllHeads);
  const FusionFit fit =
      fit_vectors(sums, KvPart::kKey, 3, {1, 2}, FusionForm::kChannel, HeadMap::kSearch);
  EXPECT_TRUE(at::equal(fit.heads, truth.heads)) << fit.heads;
  EXPECT_TRUE(tensors_close(fit.weight, truth.weight, 1e-4));
  rows_[3] = fused({.form = FusionForm::kChannel, .weight = tied(5), .heads = {}}, {0, 2});
  const FusionFit searched = search_sources(moments(ProductScope::kSameHead), KvPart::kValue, 3,
                                            {0, 1, 2}, FusionForm::kChannel, HeadMap::kSame);
  EXPECT_EQ(searched.sources, (std::vector<int>{0, 2}));
  EXPECT_NEAR(searched.r2, 1, 1e-8);
}

TEST_F(FusionFitTest, RecoversMatrices) {
  const Fusion truth{
      .form = FusionForm::kFull, .weight = random_normal({16, 48}, 6).to(at::kDouble), .heads = {}};
  rows_[3] = fused(truth, {0, 1, 2});
  const FusionFit fit = fit_matrices(moments(ProductScope::kMatrices), KvPart::kKey, 3, {0, 1, 2});
  EXPECT_TRUE(tensors_close(fit.weight, truth.weight, 1e-3));
  EXPECT_NEAR(fit.r2, 1, 1e-8);
}

// About the mean: a layer of large mean that the sources say nothing about has no R^2 near one.
TEST_F(FusionFitTest, R2IsAboutTheMeans) {
  rows_[3] = random_normal({kTokens, kKvHeads, kHeadDim}, 7).to(at::kDouble) + 30;
  const FusionFit fit = fit_ones(moments(ProductScope::kSameHead), KvPart::kKey, 3, {1});
  EXPECT_NEAR(fit.r2, r2(rows_.at(1)), 1e-6);
  EXPECT_LT(fit.r2, -100);
}

// Least squares: no other factors do better.
TEST_F(FusionFitTest, FitsNoiseAsWellAsCanBe) {
  rows_[3] = fused({.form = FusionForm::kChannel, .weight = tied(8), .heads = {}}, {0, 1}) +
             random_normal({kTokens, kKvHeads, kHeadDim}, 9).to(at::kDouble);
  const FusionFit fit = fit_vectors(moments(ProductScope::kSameHead), KvPart::kKey, 3, {0, 1},
                                    FusionForm::kChannel, HeadMap::kSame);
  const auto of = [&](const at::Tensor& weight) {
    return r2(fused({.form = FusionForm::kChannel, .weight = weight, .heads = {}}, {0, 1}));
  };
  EXPECT_NEAR(fit.r2, of(fit.weight), 1e-9);
  EXPECT_GT(fit.r2, of(fit.weight * 1.01));
  EXPECT_GT(fit.r2, of(tied(8)));
}

}  // namespace
}  // namespace kvc
