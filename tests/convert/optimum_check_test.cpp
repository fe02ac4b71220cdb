#include "convert/latent/group_svd.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/eigen/symmetric_eigen.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;

class OptimumError : public ::testing::Test {
 protected:
  OptimumError() {
    const SymmetricEigen eigen = symmetric_eigen(at::mm(m.t(), m), 20);
    values = eigen.values;
    vectors = eigen.vectors.clone();
  }

  double error() const {
    const at::Tensor captured = at::mm(m, vectors.t()).square().sum(0);
    return optimum_error(m.square().sum().item<double>(), captured, values, vectors);
  }

  at::Tensor m = random_normal({50, 30}, 5).to(at::kDouble);
  at::Tensor values, vectors;
};

TEST_F(OptimumError, IsRoundingForTheRightPairs) { EXPECT_LT(error(), 1e-13); }

TEST_F(OptimumError, CatchesAWrongValue) {
  values[7] += 1e-5 * values[0];
  EXPECT_GT(error(), 1e-6);
}

TEST_F(OptimumError, CatchesValuesThatSumUp) {
  values[3] += 1e-4 * values[0];
  values[4] -= 1e-4 * values[0];
  EXPECT_GT(error(), 1e-6);
}

TEST_F(OptimumError, CatchesAWrongVector) {
  // Turned by 0.05 towards one that is not kept: still orthonormal.
  const at::Tensor dropped = symmetric_eigen(at::mm(m.t(), m), 30).vectors[25];
  vectors[2].mul_(std::cos(0.05)).add_(dropped, std::sin(0.05));
  EXPECT_GT(error(), 1e-6);
}

TEST_F(OptimumError, CatchesLostOrthogonality) {
  vectors[19].add_(vectors[18], 1e-5);
  EXPECT_GT(error(), 1e-6);
  vectors[19].copy_(vectors[18]);
  EXPECT_GT(error(), 0.1);
}

TEST_F(OptimumError, CatchesAMissingEigenvalue) {
  values = values.narrow(0, 0, 29);
  EXPECT_GT(error(), 1e-6);
}

}  // namespace
}  // namespace kvc
