#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "convert/latent/group_svd.h"
#include "core/error.h"
#include "model/eigen/back_transform.h"
#include "model/eigen/band_tridiagonal.h"
#include "model/eigen/secular_equation.h"
#include "model/eigen/symmetric_eigen.h"
#include "model/eigen/two_stage_eigen.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

at::Tensor random_symmetric(std::int64_t n) {
  const at::Tensor x = random_normal({n, n}, 1).to(at::kDouble);
  return x + x.t();
}

// Orthogonal from a QR decomposition.
at::Tensor with_spectrum(const at::Tensor& values) {
  const std::int64_t n = values.size(0);
  const auto [q, r] = at::linalg_qr(random_normal({n, n}, 2).to(at::kDouble), "reduced");
  const at::Tensor matrix = at::mm(q.mul(values), q.t());
  return matrix + matrix.t();
}

at::Tensor tridiagonal(const at::Tensor& diagonal, const at::Tensor& beside) {
  return at::diag(diagonal) + at::diag(beside, 1) + at::diag(beside, -1);
}

at::Tensor range(std::int64_t n) { return at::arange(n, at::kDouble); }

at::Tensor block_diagonal(std::int64_t n) {
  at::Tensor matrix = random_symmetric(n);
  matrix.narrow(0, n / 3, n - n / 3).narrow(1, 0, n / 3).zero_();
  matrix.narrow(1, n / 3, n - n / 3).narrow(0, 0, n / 3).zero_();
  return matrix;
}

struct MatrixClass {
  const char* name;
  std::function<at::Tensor(std::int64_t)> make;
};

const std::vector<MatrixClass>& matrix_classes() {
  static const std::vector<MatrixClass> classes = {
      {"random", random_symmetric},
      {"gram",
       [](std::int64_t n) {
         const at::Tensor x = random_normal({2 * n, n}, 3).to(at::kDouble);
         return at::mm(x.t(), x);
       }},
      {"zero",
       [](std::int64_t n) {
         return at::zeros({n, n}, at::kDouble);
       }},
      {"identity", [](std::int64_t n) { return at::eye(n, at::kDouble).mul(3); }},
      {"all equal values",
       [](std::int64_t n) { return with_spectrum(at::ones({n}, at::kDouble)); }},
      {"all equal elements",
       [](std::int64_t n) {
         return at::ones({n, n}, at::kDouble);
       }},
      {"diagonal", [](std::int64_t n) { return at::diag(at::sin(range(n))); }},
      {"tridiagonal",
       [](std::int64_t n) { return tridiagonal(at::sin(range(n)), at::cos(range(n - 1))); }},
      {"second difference",
       [](std::int64_t n) {
         return tridiagonal(at::full({n}, 2.0, at::kDouble), at::full({n - 1}, -1.0, at::kDouble));
       }},
      {"Wilkinson",
       [](std::int64_t n) {
         return tridiagonal((range(n) - 0.5 * static_cast<double>(n - 1)).abs(),
                            at::ones({n - 1}, at::kDouble));
       }},
      {"block diagonal", block_diagonal},
      {"rank five",
       [](std::int64_t n) {
         const at::Tensor x = random_normal({5, n}, 4).to(at::kDouble);
         return at::mm(x.t(), x);
       }},
      {"condition 1e16",
       [](std::int64_t n) {
         return with_spectrum(at::pow(10.0, -16.0 * range(n) / static_cast<double>(n)));
       }},
      {"clusters",
       [](std::int64_t n) { return with_spectrum(at::fmod(range(n), 4.0) + 1e-14 * range(n)); }},
      {"one large",
       [](std::int64_t n) { return with_spectrum(at::eye(n, at::kDouble)[0] + 1e-9); }},
      {"both signs", [](std::int64_t n) { return with_spectrum(at::pow(-1.0, range(n))); }},
      {"huge", [](std::int64_t n) { return random_symmetric(n).mul(1e150); }},
      {"tiny", [](std::int64_t n) { return random_symmetric(n).mul(1e-150); }},
      {"graded",
       [](std::int64_t n) {
         const at::Tensor scale = at::pow(10.0, -200.0 * range(n) / static_cast<double>(n));
         return random_symmetric(n).mul(scale).mul(scale.unsqueeze(1));
       }},
  };
  return classes;
}

struct Pairs {
  at::Tensor values, vectors;  // [n], [n, num_vectors]
};

Pairs solve(const at::Tensor& matrix, std::int64_t num_vectors) {
  at::Tensor garbage = at::full_like(matrix, std::numeric_limits<double>::quiet_NaN());
  const at::Tensor lower = matrix.tril() + garbage.triu(1);  // only the lower triangle may matter
  auto [values, vectors] = two_stage_eigen(lower, largest_magnitude(lower), num_vectors);
  return {values, vectors};
}

// LAPACK's, descending; the matrix scaled to what it can square.
at::Tensor lapack_values(const at::Tensor& matrix) {
  const double scale = matrix.abs().max().item<double>();
  if (scale == 0) {
    return at::zeros({matrix.size(0)}, at::kDouble);
  }
  return std::get<0>(at::linalg_eigh(matrix / scale, "L")).flip(0) * scale;
}

double largest(const at::Tensor& x) { return x.numel() > 0 ? x.abs().max().item<double>() : 0; }

// ||A V - V L|| and the values within a few n eps ||A||, ||V^T V - I|| within a few n eps.
void expect_eigenpairs(const at::Tensor& matrix, const at::Tensor& expected_values,
                       const Pairs& pairs, std::int64_t num_vectors) {
  const std::int64_t n = matrix.size(0);
  ASSERT_EQ(pairs.values.sizes(), at::IntArrayRef({n}));
  ASSERT_EQ(pairs.vectors.sizes(), at::IntArrayRef({n, num_vectors}));
  const double scale = std::max(largest(matrix), std::numeric_limits<double>::min());
  const at::Tensor scaled = matrix / scale, values = pairs.values / scale;
  const at::Tensor expected = expected_values / scale;
  const double norm = std::max(largest(expected), kEpsilon);
  const double bound = 8 * kEpsilon * static_cast<double>(std::max<std::int64_t>(n, 8));
  EXPECT_LE(largest(values - expected), bound * norm);
  const at::Tensor residual =
      at::mm(scaled, pairs.vectors) - pairs.vectors * values.narrow(0, 0, num_vectors);
  EXPECT_LE(largest(at::linalg_vector_norm(residual, 2, at::IntArrayRef({0}))), bound * norm);
  const at::Tensor gram = at::mm(pairs.vectors.t(), pairs.vectors);
  EXPECT_LE(largest(gram - at::eye(num_vectors, at::kDouble)), bound);
  EXPECT_TRUE((values.diff() <= 0).all().item<bool>()) << "not descending";
}

// A number of threads for the rest of a block.
class Threads {
 public:
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

class TwoStageEigen : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(TwoStageEigen, DiagonalisesEveryClass) {
  const std::int64_t n = GetParam();
  const Threads threads(1);
  for (const MatrixClass& matrix_class : matrix_classes()) {
    SCOPED_TRACE(matrix_class.name);
    const at::Tensor matrix = matrix_class.make(n), values = lapack_values(matrix);
    for (const std::int64_t num_vectors : {n, (7 * n + 9) / 10, std::int64_t{1}}) {
      SCOPED_TRACE(num_vectors);
      expect_eigenpairs(matrix, values, solve(matrix, num_vectors), num_vectors);
    }
  }
}

// Around the sizes of a band, a leaf, a block of the symmetric product, and several panels.
INSTANTIATE_TEST_SUITE_P(Sizes, TwoStageEigen,
                         ::testing::Values(1, 2, 3, 7, 63, 64, 65, 66, 67, 129, 191, 257, 322,
                                           517));

TEST(TwoStageEigen, FindsAnyNumberOfVectors) {
  const Threads threads(1);
  const at::Tensor matrix = random_symmetric(97), values = lapack_values(matrix);
  for (std::int64_t num_vectors = 1; num_vectors <= 97; ++num_vectors) {
    expect_eigenpairs(matrix, values, solve(matrix, num_vectors), num_vectors);
  }
}

TEST(TwoStageEigen, RepeatsItsBits) {
  const at::Tensor matrix = random_symmetric(300);
  for (const int count : {1, 2}) {
    const Threads threads(count);
    const Pairs first = solve(matrix, 210), second = solve(matrix, 210);
    EXPECT_TRUE(at::equal(first.values, second.values)) << count;
    EXPECT_TRUE(at::equal(first.vectors, second.vectors)) << count;
  }
}

TEST(ChaseBand, IsTheSameForAnyNumberOfThreads) {
  const at::Tensor element = random_normal({500, kBandWidth + 1}, 6).to(at::kDouble);
  std::vector<Tridiagonal> results;
  std::vector<at::Tensor> vectors;
  for (const int count : {1, 2, 3}) {
    const Threads threads(count);
    std::vector<double> band(static_cast<std::size_t>((500 + 2 * kBandWidth) * (kBandStride + 1)));
    for (std::int64_t i = 0; i < 500; ++i) {
      for (std::int64_t below = 0; below <= kBandWidth && i + below < 500; ++below) {
        band[static_cast<std::size_t>(i * (kBandStride + 1) + below)] =
            element[i][below].item<double>();
      }
    }
    ChaseReflectors reflectors(500);
    results.push_back(chase_band(band, reflectors));
    std::vector<std::int64_t> columns(60);
    std::iota(columns.begin(), columns.end(), 0);
    vectors.push_back(at::eye(500, 60, at::kDouble));
    apply_chase(reflectors, vectors.back(), columns);
  }
  for (std::size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i].diagonal, results[0].diagonal);
    EXPECT_EQ(results[i].subdiagonal, results[0].subdiagonal);
    EXPECT_TRUE(at::equal(vectors[i], vectors[0]));
  }
}

TEST(SymmetricEigen, RefusesWhatIsNotFiniteAtAnySize) {
  for (const std::int64_t n : {3, 100, 600}) {
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      for (const auto& [row, column] :
           {std::pair{n - 1, std::int64_t{0}}, std::pair{n / 2, n / 2}}) {
        at::Tensor matrix = at::eye(n, at::kDouble);
        matrix[row][column] = bad;
        EXPECT_THROW(symmetric_eigen(matrix, n), Error) << n << " " << bad;
      }
    }
  }
}

TEST(SymmetricEigen, LargeMatricesAgreeWithLapack) {
  const at::Tensor matrix = random_symmetric(600);
  const SymmetricEigen eigen = symmetric_eigen(matrix.clone(), 400);
  expect_eigenpairs(matrix, lapack_values(matrix), {eigen.values, eigen.vectors.t()}, 400);
}

// As the runtime's engine calls it: tensors made in inference mode may be changed by threads in it alone.
TEST(SymmetricEigen, LargeMatricesInInferenceMode) {
  const at::Tensor matrix = random_symmetric(600);
  const SymmetricEigen expected = symmetric_eigen(matrix.clone(), 20);
  const c10::InferenceMode guard;
  const SymmetricEigen eigen = symmetric_eigen(matrix.clone(), 20);
  EXPECT_TRUE(at::equal(eigen.values, expected.values));
  EXPECT_TRUE(at::equal(eigen.vectors, expected.vectors));
}

TEST(SecularEquation, SolvesByHand) {
  // diag(0, 1) + 2 z z^T with z = (1, 1) / sqrt(2) is [[1, 1], [1, 2]]: (3 -+ sqrt(5)) / 2.
  const SecularEquation equation{{0.0, 1.0}, {0.5, 0.5}, 2.0};
  EXPECT_NEAR(solve_secular(equation, 0).value(), (3 - std::sqrt(5.0)) / 2, 1e-15);
  EXPECT_NEAR(solve_secular(equation, 1).value(), (3 + std::sqrt(5.0)) / 2, 1e-15);
  EXPECT_EQ(solve_secular({{4.0}, {1.0}, 0.5}, 0).value(), 4.5);
}

TEST(SecularEquation, RootsSeparateThePolesHoweverSmallTheWeights) {
  SecularEquation equation{{}, {}, 1e-3};
  for (int i = 0; i < 40; ++i) {
    equation.poles.push_back(i < 20 ? i * 1e-12 : i);
    equation.weights.push_back(i % 3 == 0 ? 1e-30 : 1.0 / 27);
  }
  for (std::int64_t i = 0; i < equation.size(); ++i) {
    const SecularRoot root = solve_secular(equation, i);
    const auto k = static_cast<std::size_t>(i);
    EXPECT_GT((root.origin - equation.poles[k]) + root.shift, 0) << i;
    if (i + 1 < equation.size()) {
      EXPECT_LT((root.origin - equation.poles[k + 1]) + root.shift, 0) << i;
    }
  }
}

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
