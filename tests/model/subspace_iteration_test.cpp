#include "model/eigen/subspace_iteration.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "model/eigen/symmetric_eigen.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

// Y^T Y of tokens whose directions decay as the eigenvalues of keys do.
at::Tensor decaying_gram(std::int64_t n, double decay) {
  const at::Tensor rows = testing::random_normal({2 * n, n}, 5).to(at::kDouble) *
                          at::arange(n, at::kDouble).mul(-decay).exp();
  const at::Tensor rotation =
      std::get<0>(at::linalg_qr(testing::random_normal({n, n}, 6).to(at::kDouble)));
  const at::Tensor y = at::mm(rows, rotation);
  return at::mm(y.t(), y);
}

double lost(const at::Tensor& gram, const at::Tensor& vectors) {
  const at::Tensor captured = at::mm(at::mm(vectors, gram), vectors.t()).diagonal().sum();
  return (gram.diagonal().sum() - captured).item<double>();
}

TEST(LeadingSubspace, LosesLittleMoreThanTheBest) {
  const at::Tensor gram = decaying_gram(300, 0.02);
  for (const std::int64_t rank : {1, 16, 60}) {
    const LeadingSubspace found = leading_subspace(gram, rank);
    EXPECT_GT(found.products, 0);
    const double least = lost(gram, symmetric_eigen(gram.clone(), rank).vectors);
    EXPECT_LE(lost(gram, found.vectors), least * (1 + 1e-3)) << rank;
    EXPECT_GE(lost(gram, found.vectors), least * (1 - 1e-9)) << rank;
    const at::Tensor products = at::mm(found.vectors, found.vectors.t());
    EXPECT_TRUE(testing::tensors_close(products, at::eye(rank, at::kDouble), 1e-10));
  }
}

TEST(LeadingSubspace, BeginsWhereItIsTold) {
  const at::Tensor gram = decaying_gram(300, 0.02);
  const LeadingSubspace cold = leading_subspace(gram, 40);
  const LeadingSubspace warm = leading_subspace(gram, 40, cold.vectors);
  EXPECT_LE(warm.products, cold.products);
  EXPECT_LE(lost(gram, warm.vectors), lost(gram, cold.vectors) * (1 + 1e-3));
}

TEST(LeadingSubspace, BeginsWithDirectionsThatAreOneAnothers) {
  const at::Tensor gram = decaying_gram(300, 0.02);
  const at::Tensor some = leading_subspace(gram, 20).vectors;
  const double least = lost(gram, symmetric_eigen(gram.clone(), 40).vectors);
  for (const double apart : {0.0, 1e-9, 1e-5}) {
    const at::Tensor others = some + apart * testing::random_normal({20, 300}, 8).to(at::kDouble);
    const at::Tensor found = leading_subspace(gram, 40, at::cat({some, others})).vectors;
    EXPECT_LE(lost(gram, found), least * (1 + 1e-3)) << apart;
    EXPECT_TRUE(testing::tensors_close(at::mm(found, found.t()), at::eye(40, at::kDouble), 1e-10));
  }
}

TEST(LeadingSubspace, FindsAllOfALowRankMatrix) {
  const at::Tensor y = testing::random_normal({3, 200}, 7).to(at::kDouble);
  const at::Tensor gram = at::mm(y.t(), y);
  EXPECT_LT(lost(gram, leading_subspace(gram, 8).vectors), 1e-9);
}

TEST(LeadingSubspace, RefusesWhatIsNotFinite) {
  at::Tensor gram = decaying_gram(100, 0.02);
  gram[3][4] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(leading_subspace(gram, 4), Error);
}

}  // namespace
}  // namespace kvc
