#include "convert/latent/group_svd.h"

#include <gtest/gtest.h>

#include "convert/latent/merging.h"
#include "core/error.h"
#include "model/eigen/symmetric_eigen.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::group_svd_test {
namespace {

using testing::random_normal;
using testing::tensors_close;

at::Tensor random_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  return random_normal({rows, columns}, seed).to(at::kDouble);
}

// A covariance with a wide spread of scales.
at::Tensor random_metric(std::int64_t n, std::uint64_t seed) {
  const at::Tensor scales = at::pow(10.0, at::linspace(0, -2, n, at::kDouble));
  const at::Tensor x = random_matrix(4 * n, n, seed).mul(scales);
  return damped_metric(at::mm(x.t(), x).div(4.0 * static_cast<double>(n)));
}

// tr((W - B A) C (W - B A)^T)
double metric_error(const at::Tensor& w, const GroupFactorization& factors, const at::Tensor& c) {
  const at::Tensor e = w - at::mm(factors.reconstruct_proj, factors.latent_proj);
  return at::mm(e, c).mul(e).sum().item<double>();
}

TEST(SymmetricEigen, DiagonalisesByHand) {
  // [[2, 1], [1, 2]] has eigenvalues 3 and 1; only the lower triangle is read.
  const at::Tensor matrix = at::tensor({2.0, 99.0, 1.0, 2.0}, at::kDouble).view({2, 2});
  const SymmetricEigen eigen = symmetric_eigen(matrix, 2);
  EXPECT_TRUE(tensors_close(eigen.values, at::tensor({3.0, 1.0}, at::kDouble), 1e-14));
  const at::Tensor direction = eigen.vectors[0].abs();
  EXPECT_TRUE(tensors_close(direction, at::full({2}, std::sqrt(0.5), at::kDouble), 1e-14));
}

TEST(SymmetricEigen, RowsAreOrthonormalEigenvectors) {
  const at::Tensor x = random_matrix(60, 37, 1);
  const at::Tensor matrix = at::mm(x.t(), x);
  const SymmetricEigen eigen = symmetric_eigen(matrix.clone(), 37);
  const at::Tensor rebuilt =
      at::mm(eigen.vectors.t(), eigen.vectors.mul(eigen.values.unsqueeze(1)));
  EXPECT_TRUE(tensors_close(rebuilt, matrix, 1e-11));
  EXPECT_TRUE(
      tensors_close(at::mm(eigen.vectors, eigen.vectors.t()), at::eye(37, at::kDouble), 1e-12));
}

TEST(SymmetricEigen, RefusesWhatIsNotFinite) {
  at::Tensor matrix = at::eye(3, at::kDouble);
  matrix[1][1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(factorize_group(matrix, {}, 2), Error);
}

TEST(LowerGram, EqualsTheFullProduct) {
  const at::Tensor m = random_matrix(40, 1300, 2);  // six blocks, the last one narrow
  EXPECT_TRUE(tensors_close(lower_gram(m).tril(), at::mm(m.t(), m).tril(), 1e-11));
}

struct Shape {
  std::int64_t rows, hidden_size;
};

class GroupSvd : public ::testing::TestWithParam<Shape> {
 protected:
  at::Tensor w = random_matrix(GetParam().rows, GetParam().hidden_size, 3);
  std::int64_t full = std::min(GetParam().rows, GetParam().hidden_size);
};

TEST_P(GroupSvd, FullRankIsExact) {
  for (const at::Tensor& metric : {at::Tensor(), random_metric(w.size(1), 4)}) {
    const GroupFactorization factors = factorize_group(w, metric, full);
    EXPECT_EQ(factors.rank(), full);
    EXPECT_TRUE(tensors_close(at::mm(factors.reconstruct_proj, factors.latent_proj), w, 1e-9));
    EXPECT_NEAR(factors.energy_kept, 1, 1e-12);
    EXPECT_LT(factors.optimum_error, 1e-6);
  }
}

TEST_P(GroupSvd, BHasTheSingularValuesAndTheEncoderIsItsInverse) {
  const GroupFactorization factors = factorize_group(w, random_metric(w.size(1), 5), full / 2);
  const at::Tensor& b = factors.reconstruct_proj;
  EXPECT_TRUE(tensors_close(at::mm(b.t(), b), at::diag(factors.singular_values), 1e-9));
  const at::Tensor p = ls_encoder(factors, {});
  EXPECT_TRUE(tensors_close(at::mm(p, b), at::eye(full / 2, at::kDouble), 1e-10));
  EXPECT_TRUE(tensors_close(at::mm(p, w), factors.latent_proj, 1e-10));  // A = P W
}

TEST_P(GroupSvd, TheErrorIsTheDroppedEigenvalues) {
  const at::Tensor c = random_metric(w.size(1), 6);
  const double total = at::mm(w, c).mul(w).sum().item<double>();
  const GroupFactorization all = factorize_group(w, c, full);
  const at::Tensor eigenvalues = all.singular_values.square();
  double previous = total;
  for (const std::int64_t rank : {full / 4, full / 2, full - 1}) {
    const GroupFactorization factors = factorize_group(w, c, rank);
    const double dropped = eigenvalues.narrow(0, rank, full - rank).sum().item<double>();
    EXPECT_NEAR(metric_error(w, factors, c), dropped, 1e-9 * total) << rank;
    EXPECT_LT(factors.optimum_error, 1e-6);
    EXPECT_NEAR(factors.energy_kept, 1 - dropped / total, 1e-9);
    EXPECT_LT(dropped, previous);
    previous = dropped;
  }
}

TEST_P(GroupSvd, WhiteningIsNeverWorseInItsMetric) {
  const at::Tensor c = random_metric(w.size(1), 7);
  for (const std::int64_t rank : {full / 4, full / 2}) {
    EXPECT_LT(metric_error(w, factorize_group(w, c, rank), c),
              metric_error(w, factorize_group(w, {}, rank), c));
  }
}

INSTANTIATE_TEST_SUITE_P(TallAndWide, GroupSvd, ::testing::Values(Shape{96, 40}, Shape{24, 72}));

TEST(GroupSvd, StopsAtTheEffectiveRank) {
  const at::Tensor w = at::mm(random_matrix(50, 6, 8), random_matrix(6, 30, 9));
  const GroupFactorization factors = factorize_group(w, {}, 20);
  EXPECT_EQ(factors.rank(), 6);
  EXPECT_TRUE(tensors_close(at::mm(factors.reconstruct_proj, factors.latent_proj), w, 1e-9));
}

TEST(GroupSvd, RefusesZeroWeights) {
  EXPECT_THROW(factorize_group(at::zeros({4, 3}, at::kDouble), {}, 2), Error);
}

TEST(FactorizeOutputs, KeepsTheMostOutputEnergy) {
  const at::Tensor w = random_matrix(24, 16, 10);
  const at::Tensor y = random_matrix(200, 24, 11).mul(at::linspace(2, 0.1, 24, at::kDouble));
  const at::Tensor moment = at::mm(y.t(), y).div(200);
  const GroupFactorization joint = factorize_outputs(w, moment.clone(), 8);
  const auto error = [&](const GroupFactorization& factors) {
    const at::Tensor encoded = at::mm(y, ls_encoder(factors, {}).t());
    return (y - at::mm(encoded, factors.reconstruct_proj.t())).square().sum().item<double>();
  };
  EXPECT_LT(joint.optimum_error, 1e-10);
  EXPECT_NEAR(error(joint), (1 - joint.energy_kept) * y.square().sum().item<double>(), 1e-8);
  EXPECT_LT(error(joint), error(factorize_group(w, {}, 8)));
}

}  // namespace
}  // namespace kvc::group_svd_test
