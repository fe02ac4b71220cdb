// Which matrices of factors get 8 bits: what is predicted is what rounding costs.
#include "convert/factor_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "convert/run_statistics.h"
#include "model/coefficient_codes.h"
#include "tests/testing/test_tensors.h"

namespace kvc::factor_choice_test {
namespace {

using ::testing::Optional;
using testing::random_normal;

TEST(WideCoefficients, AreTheFewestThatLeaveTheErrorOfEveryPart) {
  const at::Tensor added =
      at::tensor({3.0, 1.0, 0.6, 0.3, 0.1, 0.0, 0.0, 0.4}, at::kDouble).view({2, 4});
  const auto choice = [&](double keys, double values) {
    return wide_coefficients(added, at::tensor({keys, values}, at::kDouble));
  };
  EXPECT_THAT(choice(500, 500), Optional(0));
  EXPECT_THAT(choice(480, 500), Optional(1));
  EXPECT_THAT(choice(90, 500), Optional(2));
  EXPECT_THAT(choice(31, 41), Optional(3));
  EXPECT_EQ(choice(31, 39), std::nullopt);
  EXPECT_EQ(choice(29, 500), std::nullopt);
}

TEST(WideCoefficients, ServeBothPurposes) {
  EXPECT_THAT(both(2, 3), Optional(3));
  EXPECT_EQ(both(std::nullopt, 3), std::nullopt);
}

constexpr std::int64_t kChannels = 96, kTokens = 4000, kRank = 40;

// Tokens whose directions decay, so that `error` of their energy lies outside the first kRank.
struct Problem {
  explicit Problem(double decay) {
    const at::Tensor rotation =
        std::get<0>(at::linalg_qr(random_normal({kChannels, kChannels}, 2).to(at::kDouble)));
    y = at::mm(random_normal({kTokens, kChannels}, 1).to(at::kDouble) *
                   at::arange(kChannels, at::kDouble).mul(-decay).exp(),
               rotation);
    covariance = at::mm(y.t(), y) / kTokens;
    metric = at::logspace(-1, 1, kChannels, 10, at::kDouble).diag();
    basis = principal_basis(covariance, metric, kRank);
    dropped = basis.eigenvalues.narrow(0, kRank, kChannels - kRank).sum().item<double>();
  }

  // Mean squared error of y in a metric.
  double error(const at::Tensor& encoder, const at::Tensor& decoder, const at::Tensor& m) const {
    const at::Tensor lost =
        y - at::mm(at::mm(y, encoder.to(at::kDouble).t()), decoder.to(at::kDouble).t());
    return at::mm(lost, m).mul_(lost).sum().item<double>() / kTokens;
  }

  at::Tensor y, covariance, metric;
  PrincipalBasis basis;
  double dropped = 0;
};

at::Tensor stored(const at::Tensor& matrix, CoefficientAxis axis, std::int64_t wide) {
  return decode_coefficients(code_coefficients(matrix, axis, wide), axis, at::kFloat);
}

TEST(BasisNoise, IsWhatRoundingAdds) {
  const Problem problem(0.08);
  const at::Tensor &e = problem.basis.encoder, &f = problem.basis.decoder;
  const BasisNoise noise = basis_noise(e, f, problem.basis.eigenvalues.narrow(0, 0, kRank),
                                       problem.covariance, problem.metric, at::kCPU);
  for (const std::int64_t wide : {0, 5, 20}) {
    const auto rest = [&](const at::Tensor& added) {
      return added.narrow(0, wide, kRank - wide).sum().item<double>();
    };
    const double of_encoder =
        problem.error(stored(e, CoefficientAxis::kRows, wide), f, problem.metric);
    const double of_decoder =
        problem.error(e, stored(f, CoefficientAxis::kColumns, wide), problem.metric);
    EXPECT_NEAR(of_encoder - problem.dropped, rest(noise.encoder), 0.05 * rest(noise.encoder));
    EXPECT_NEAR(of_decoder - problem.dropped, rest(noise.decoder), 0.05 * rest(noise.decoder));
  }
}

TEST(PairChoice, KeepsTheErrorWithinTwoPercent) {
  for (const double decay : {0.02, 0.1, 0.2}) {
    SCOPED_TRACE(decay);
    const Problem problem(decay);
    const at::Tensor e = problem.basis.encoder.to(at::kFloat),
                     f = problem.basis.decoder.to(at::kFloat);
    const at::Tensor identity = at::eye(kChannels, at::kDouble);
    const PairChoice choices[] = {
        choose_pair(basis_noise(e, f, problem.basis.eigenvalues.narrow(0, 0, kRank),
                                problem.covariance, problem.metric, at::kCPU),
                    kRank, problem.dropped),
        choose_pair(e, f, {{problem.y.to(at::kFloat), problem.y.to(at::kFloat), {}, 0}})};
    for (const auto& [choice, metric] :
         {std::pair(choices[0], problem.metric), std::pair(choices[1], identity)}) {
      const at::Tensor encoder =
          choice.encoder ? stored(e, CoefficientAxis::kRows, *choice.encoder) : e;
      const at::Tensor decoder =
          choice.decoder ? stored(f, CoefficientAxis::kColumns, *choice.decoder) : f;
      EXPECT_LT(problem.error(encoder, decoder, metric), 1.0205 * problem.error(e, f, metric));
    }
    // Slow decay leaves an error that hides all rounding; fast decay leaves little.
    EXPECT_EQ(choices[0].encoder == WideCoefficients(0), decay < 0.04);
    EXPECT_EQ(choices[0].decoder == WideCoefficients(0), decay < 0.04);
  }
}

TEST(PairChoice, LooksAtKeysAndValuesApart) {
  const at::Tensor y = random_normal({2000, 64}, 3);
  const at::Tensor values = y * 1e-3;
  const at::Tensor encoder = at::eye(64).narrow(0, 0, 48).contiguous();
  const at::Tensor decoder =
      at::cat({encoder.t(), encoder.t() * 1e-3 + 1e-6 * random_normal({64, 48}, 4)});
  const PairChoice keys = choose_pair(encoder, decoder, {{y, y, {}, 0}});
  EXPECT_THAT(keys.decoder, Optional(0));
  // One scale per column follows the keys; what it leaves of values a thousandth as large is little.
  EXPECT_EQ(choose_pair(encoder, decoder, {{y, y, values, 0}}).decoder, std::nullopt);
}

}  // namespace
}  // namespace kvc::factor_choice_test
