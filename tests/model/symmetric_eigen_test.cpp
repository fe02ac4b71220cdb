#include "model/eigen/symmetric_eigen.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "convert/latent/group_svd.h"
#include "core/error.h"
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
  const SymmetricEigen eigen = symmetric_eigen(lower, num_vectors);
  return {eigen.values, eigen.vectors.t()};
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

class SymmetricEigenOf : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(SymmetricEigenOf, DiagonalisesEveryClass) {
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

INSTANTIATE_TEST_SUITE_P(Sizes, SymmetricEigenOf,
                         ::testing::Values(1, 2, 3, 7, 63, 64, 65, 66, 67, 129, 191, 257, 322,
                                           517));

TEST(SymmetricEigen, FindsAnyNumberOfVectors) {
  const Threads threads(1);
  const at::Tensor matrix = random_symmetric(97), values = lapack_values(matrix);
  for (std::int64_t num_vectors = 1; num_vectors <= 97; ++num_vectors) {
    expect_eigenpairs(matrix, values, solve(matrix, num_vectors), num_vectors);
  }
}

TEST(SymmetricEigen, RepeatsItsBits) {
  const at::Tensor matrix = random_symmetric(300);
  for (const int count : {1, 2}) {
    const Threads threads(count);
    const Pairs first = solve(matrix, 210), second = solve(matrix, 210);
    EXPECT_TRUE(at::equal(first.values, second.values)) << count;
    EXPECT_TRUE(at::equal(first.vectors, second.vectors)) << count;
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

}  // namespace
}  // namespace kvc
