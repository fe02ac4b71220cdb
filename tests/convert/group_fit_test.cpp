#include "convert/latent/group_fit.h"

#include <gtest/gtest.h>

#include "convert/latent/group_svd.h"
#include "convert/latent/merging.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::group_fit_test {
namespace {

using testing::tensors_close;

constexpr int kLayers = 3;
constexpr std::int64_t kKvHeads = 2, kHeadDim = 3, kKvDim = 6, kHidden = 16, kTokens = 50;

at::Tensor random_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  return testing::random_normal({rows, columns}, seed).to(at::kDouble);
}

// A group of three layers with inputs and outputs of one batch, biases included.
struct Fixture {
  explicit Fixture(bool identical_inputs) {
    group.first_layer = 4;
    group.num_layers = kLayers;
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::uint64_t seed = identical_inputs ? 50 : 50 + static_cast<std::uint64_t>(layer);
      hidden.push_back(random_matrix(kTokens, kHidden, seed).to(at::kFloat));
      weights[layer].k_proj.bias = testing::random_normal({kKvDim}, 90);
    }
  }

  at::Tensor output(int layer, int part) const {  // bias-free
    const at::Tensor rows = stacked_proj.narrow(0, (2 * layer + part) * kKvDim, kKvDim);
    return at::mm(hidden[static_cast<std::size_t>(layer)], rows.to(at::kFloat).t());
  }
  at::Tensor stacked_outputs() const {
    std::vector<at::Tensor> parts;
    for (int layer = 0; layer < kLayers; ++layer) {
      parts.push_back(output(layer, 0));
      parts.push_back(output(layer, 1));
    }
    return at::cat(parts, 1).to(at::kDouble);
  }
  void feed(GroupFit& fit) const {
    const TokenBatch batch;
    for (int layer = 0; layer < kLayers; ++layer) {
      const LayerWeights& layer_weights = weights[layer];
      const at::Tensor key = output(layer, 0) + layer_weights.k_proj.bias;
      fit.add({group.first_layer + layer, 0, batch, layer_weights,
               hidden[static_cast<std::size_t>(layer)], at::Tensor(),
               key.view({kTokens, kKvHeads, kHeadDim}),
               output(layer, 1).view({kTokens, kKvHeads, kHeadDim})});
    }
  }

  LatentGroup group;
  at::Tensor stacked_proj = random_matrix(2 * kLayers * kKvDim, kHidden, 1);
  GroupFactorization factors = factorize_group(stacked_proj, {}, 7);
  LayerWeights weights[kLayers];
  std::vector<at::Tensor> hidden;
};

Merger ls_merger(const GroupFactorization& factors) { return {ls_encoder(factors, {}), {}}; }
Merger mean_merger() { return {at::Tensor(), std::vector<double>(kLayers, 1.0 / kLayers)}; }

double squared_error(const FitErrors& errors) {
  return errors.key * errors.key + errors.value * errors.value;
}

TEST(GroupFit, UnmergedErrorsAreThoseOfTheTruncation) {
  const Fixture f(false);
  GroupFit fit(f.group, kKvDim, f.factors.latent_proj, f.factors.reconstruct_proj, {});
  f.feed(fit);
  double error = 0, energy = 0;
  const at::Tensor folded = at::mm(f.factors.reconstruct_proj, f.factors.latent_proj);
  for (int layer = 0; layer < kLayers; ++layer) {
    const at::Tensor key = f.output(layer, 0).to(at::kDouble);
    const at::Tensor x = f.hidden[static_cast<std::size_t>(layer)].to(at::kDouble);
    error += (key - at::mm(x, folded.narrow(0, 2 * layer * kKvDim, kKvDim).t()))
                 .square()
                 .sum()
                 .item<double>();
    energy += key.square().sum().item<double>();
  }
  EXPECT_NEAR(fit.unmerged_errors().key, std::sqrt(error / energy), 1e-5);
  EXPECT_GT(fit.unmerged_errors().value, 0.1);
}

TEST(GroupFit, IdenticalInputsMergeToTheSameLatentByEveryRule) {
  const Fixture f(true);
  std::vector<FitErrors> errors;
  for (const Merger& merger :
       {ls_merger(f.factors), mean_merger(), Merger{at::Tensor(), {0.7, 0.2, 0.1}}}) {
    GroupFit fit(f.group, kKvDim, f.factors.latent_proj, f.factors.reconstruct_proj, merger);
    f.feed(fit);
    errors.push_back(fit.merged_errors(f.factors.reconstruct_proj));
    // Merging costs nothing here.
    EXPECT_NEAR(errors.back().key, fit.unmerged_errors().key, 1e-5);
    EXPECT_NEAR(errors.back().value, fit.unmerged_errors().value, 1e-5);
  }
  // The latent itself: A x.
  const at::Tensor y = f.stacked_outputs();
  const at::Tensor latent = at::mm(f.hidden[0].to(at::kDouble), f.factors.latent_proj.t());
  EXPECT_TRUE(tensors_close(at::mm(y, ls_encoder(f.factors, {}).t()), latent, 1e-4));
}

TEST(GroupFit, LeastSquaresBeatsEveryConvexRulePerToken) {
  const Fixture f(false);
  const at::Tensor y = f.stacked_outputs();
  const auto token_errors = [&](const at::Tensor& h) {
    return (y - at::mm(h, f.factors.reconstruct_proj.t())).square().sum(1);
  };
  const at::Tensor ls = token_errors(at::mm(y, ls_encoder(f.factors, {}).t()));
  for (const std::vector<double>& w :
       {std::vector<double>{1, 0, 0}, {0, 0, 1}, {1. / 3, 1. / 3, 1. / 3}, {0.1, 0.6, 0.3}}) {
    at::Tensor mixed = at::zeros({kTokens, kHidden}, at::kDouble);
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      mixed.add_(f.hidden[layer].to(at::kDouble), w[layer]);
    }
    EXPECT_TRUE(
        at::all(ls <= token_errors(at::mm(mixed, f.factors.latent_proj.t())) + 1e-9).item<bool>());
  }
}

TEST(GroupFit, MergedErrorsEqualTheirDefinition) {
  const Fixture f(false);
  GroupFit fit(f.group, kKvDim, f.factors.latent_proj, f.factors.reconstruct_proj,
               ls_merger(f.factors));
  f.feed(fit);
  const at::Tensor y = f.stacked_outputs();
  const at::Tensor h = at::mm(y, ls_encoder(f.factors, {}).t());
  const at::Tensor residual =
      (y - at::mm(h, f.factors.reconstruct_proj.t())).square().sum(0).view({kLayers, 2, kKvDim});
  const at::Tensor energy = y.square().sum(0).view({kLayers, 2, kKvDim});
  const auto part = [&](int index) {
    return std::sqrt(residual.select(1, index).sum().item<double>() /
                     energy.select(1, index).sum().item<double>());
  };
  const FitErrors errors = fit.merged_errors(f.factors.reconstruct_proj);
  EXPECT_NEAR(errors.key, part(0), 1e-6);
  EXPECT_NEAR(errors.value, part(1), 1e-6);
}

TEST(GroupFit, RefittingNeverRaisesTheCalibrationError) {
  for (const bool identical : {false, true}) {
    const Fixture f(identical);
    for (const Merger& merger : {ls_merger(f.factors), mean_merger()}) {
      GroupFit fit(f.group, kKvDim, f.factors.latent_proj, f.factors.reconstruct_proj, merger);
      f.feed(fit);
      const double before = squared_error(fit.merged_errors(f.factors.reconstruct_proj));
      const double after = squared_error(fit.merged_errors(fit.refit()));
      EXPECT_LE(after, before * (1 + 1e-12));
      if (!identical) {
        EXPECT_LT(after, 0.9 * before);
      }
    }
  }
}

TEST(GroupFit, TheRefitIsTheRegressionOnTheLatents) {
  const Fixture f(false);
  GroupFit fit(f.group, kKvDim, f.factors.latent_proj, f.factors.reconstruct_proj, mean_merger());
  f.feed(fit);
  at::Tensor mixed = at::zeros({kTokens, kHidden}, at::kDouble);
  for (const at::Tensor& x : f.hidden) {
    mixed.add_(x.to(at::kDouble), 1.0 / kLayers);
  }
  const at::Tensor h = at::mm(mixed, f.factors.latent_proj.t());
  const at::Tensor expected =
      at::mm(at::mm(f.stacked_outputs().t(), h), at::inverse(at::mm(h.t(), h)));
  EXPECT_TRUE(tensors_close(fit.refit(), expected, 1e-4));
}

// Fewer tokens than the rank: directions without data keep their reconstruction.
TEST(GroupFit, TheRefitStaysWithBWhereThereIsNoData) {
  const Fixture f(false);
  GroupFit fit(f.group, kKvDim, f.factors.latent_proj, f.factors.reconstruct_proj, mean_merger());
  EXPECT_TRUE(tensors_close(fit.refit(), f.factors.reconstruct_proj, 0));
}

}  // namespace
}  // namespace kvc::group_fit_test
