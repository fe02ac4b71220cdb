// The parts of a coded conversion: coordinates, quantiser, shares of bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "convert/coded/coded_settings.h"
#include "convert/coded/quantiser.h"
#include "convert/run_statistics.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

at::Tensor random_positive(std::int64_t n, std::uint64_t seed) {
  const at::Tensor x =
      random_normal({2 * n, n}, seed).to(at::kDouble) * at::linspace(3, 0.1, n, at::kDouble);
  return at::mm(x.t(), x) / static_cast<double>(2 * n);
}

TEST(PrincipalBasis, EncoderAndDecoderAreInverseAndDecorrelate) {
  const at::Tensor covariance = random_positive(12, 1);
  const at::Tensor metric = damped_cache_metric(random_positive(12, 2), 6);
  const PrincipalBasis basis = principal_basis(covariance, metric, 12);
  EXPECT_TRUE(tensors_close(at::mm(basis.encoder, basis.decoder), at::eye(12, at::kDouble), 1e-9));
  const at::Tensor seen = at::mm(basis.encoder, at::mm(covariance, basis.encoder.t()));
  EXPECT_TRUE(tensors_close(seen, basis.eigenvalues.diag(), 1e-9));
  EXPECT_TRUE((basis.eigenvalues.diff() <= 0).all().item<bool>());
  // |z|^2 is the metric's error: E^T E = M.
  EXPECT_TRUE(tensors_close(at::mm(basis.encoder.t(), basis.encoder), metric, 1e-9));
}

TEST(CacheMetric, DampingIsRelativeToEachPart) {
  at::Tensor metric = at::zeros({4, 4}, at::kDouble);
  metric[0][0] = 200;
  const at::Tensor damped = damped_cache_metric(metric, 2);
  EXPECT_TRUE(
      tensors_close(damped.diagonal(), at::tensor({201.0, 1.0, 0.5, 0.5}, at::kDouble), 1e-12));
}

TEST(CodedQuantiser, CodesByHand) {
  const at::Tensor z = at::tensor({-5.f, -0.1f, 0.f, 0.4f, 0.6f, 9.f}).unsqueeze(0);
  const at::Tensor step = at::full({1, 1}, 0.5f);
  EXPECT_TRUE(tensors_close(quantised(z, step, 1),
                            at::tensor({-0.25f, -0.25f, 0.25f, 0.25f, 0.25f, 0.25f}).unsqueeze(0),
                            0));
  EXPECT_TRUE(tensors_close(quantised(z, step, 2),
                            at::tensor({-0.75f, -0.25f, 0.25f, 0.25f, 0.75f, 0.75f}).unsqueeze(0),
                            0));
}

TEST(CodedQuantiser, NormalCoefficientsLoseWhatTheoryAllows) {
  const at::Tensor z = random_normal({3, 20000}, 3) * at::tensor({4.f, 1.f, 0.1f}).unsqueeze(1);
  const WidthCurves curves = measure_widths(z, widths_of(CodeWidths::kAll));
  // Uniform quantisers of a normal variable (Max 1960): distortion by bits at variance 1.
  const std::vector<double> theory = {1, 0.3634, 0.1188, 0.03744, 0.01154, 0.003495};
  for (std::int64_t row = 0; row < 3; ++row) {
    const double variance = curves.distortions[0][row].item<double>();
    for (std::size_t bits = 1; bits < theory.size(); ++bits) {
      const auto i = static_cast<std::int64_t>(bits);
      EXPECT_NEAR(curves.distortions[i][row].item<double>() / variance, theory[bits],
                  0.06 * theory[bits])
          << bits << " bits";
    }
  }
}

TEST(CodedQuantiser, GainsRescueOutliers) {
  at::Tensor z = random_normal({8, 64}, 4);
  z.select(1, 5).mul_(30);
  const std::vector<int> bits(8, 4);
  const at::Tensor steps = at::full({8}, 0.335, at::kDouble);
  const double without = coding_error(z, bits, steps, false);
  EXPECT_LT(coding_error(z, bits, steps, true), 0.2 * without);
}

// Distortions that fall convexly, as those of a quantiser do.
WidthCurves random_curves(const std::vector<int>& widths, std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0.2, 1);
  WidthCurves curves{
      widths, at::zeros({static_cast<std::int64_t>(widths.size()), n}, at::kDouble), {}};
  curves.distortions = at::zeros_like(curves.steps);
  for (std::int64_t i = 0; i < n; ++i) {
    double value = 4 * uniform(random), slope = value * uniform(random) / 2;
    curves.distortions[0][i] = value;
    for (std::size_t w = 1; w < widths.size(); ++w) {
      value -= slope * (widths[w] - widths[w - 1]) * 0.5;
      slope *= 0.9 * uniform(random) / 2;
      curves.distortions[static_cast<std::int64_t>(w)][i] = value;
    }
  }
  return curves;
}

double distortion_of(const WidthCurves& curves, const std::vector<int>& bits) {
  double sum = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const auto place = std::find(curves.widths.begin(), curves.widths.end(), bits[i]);
    sum += curves.distortions[place - curves.widths.begin()][static_cast<std::int64_t>(i)]
               .item<double>();
  }
  return sum;
}

// The least distortion that so many bits allow, every combination tried in which the first coefficient,
// and so the block, gets some.
double brute_force(const WidthCurves& curves, std::int64_t budget) {
  const auto n = static_cast<std::size_t>(curves.distortions.size(1));
  std::vector<int> bits(n, 0);
  double best = INFINITY;
  const std::function<void(std::size_t, std::int64_t)> choose = [&](std::size_t i,
                                                                    std::int64_t left) {
    if (i == n) {
      best = std::min(best, distortion_of(curves, bits));
      return;
    }
    for (const int width : curves.widths) {
      if (width <= left && (i > 0 || width > 0)) {
        bits[i] = width;
        choose(i + 1, left - width);
      }
    }
  };
  choose(0, budget);
  return best;
}

TEST(BitAllocation, EqualsBruteForceOnSixCoefficients) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const WidthCurves curves = random_curves({0, 1, 2, 3}, 6, seed);
    for (const std::int64_t budget : {1, 3, 7, 12, 18}) {
      const BitAllocation allocation = allocate_bits({curves}, budget);
      EXPECT_EQ(allocation.total, budget);
      EXPECT_NEAR(distortion_of(curves, allocation.bits[0]), brute_force(curves, budget), 1e-12)
          << "seed " << seed << ", " << budget << " bits";
    }
  }
}

TEST(BitAllocation, CoarseWidthsAreBestForWhatTheySpend) {
  const WidthCurves curves = random_curves({0, 4, 8}, 6, 9);
  for (const std::int64_t budget : {8, 16, 24, 40, 48, 51}) {
    const BitAllocation allocation = allocate_bits({curves}, budget);
    EXPECT_EQ(allocation.total, budget / 4 * 4);
    EXPECT_NEAR(distortion_of(curves, allocation.bits[0]), brute_force(curves, budget), 1e-12);
  }
}

TEST(BitAllocation, BitsGoToTheBlockThatNeedsThem) {
  WidthCurves rich = random_curves({0, 1, 2, 3}, 4, 1), poor = random_curves({0, 1, 2, 3}, 4, 2);
  poor.distortions.mul_(1e-6);
  const BitAllocation allocation = allocate_bits({rich, poor}, 13);
  EXPECT_THAT(allocation.bits[0], ::testing::Each(3));
  EXPECT_EQ(allocation.bits[1], (std::vector<int>{1, 0, 0, 0}));
  EXPECT_GT(allocation.price, 0);
  EXPECT_EQ(allocate_bits({rich, poor}, 1000).price, 0);
}

// A width that saves nothing by itself is passed over for a larger one that does.
TEST(BitAllocation, TakesTheConvexHull) {
  WidthCurves curves{{0, 1, 2}, at::zeros({3, 2}, at::kDouble), {}};
  curves.distortions = at::tensor({10.0, 5.0, 10.0, 4.0, 0.0, 3.0}, at::kDouble).reshape({3, 2});
  EXPECT_EQ(allocate_bits({curves}, 2).bits[0], (std::vector<int>{2, 0}));
}

}  // namespace
}  // namespace kvc
