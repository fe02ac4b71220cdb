#include "model/linear.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "core/error.h"
#include "model/parallel.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;
using testing::tensors_identical;

// Sizes around the smallest that goes to oneDNN, and odd ones.
TEST(FloatLinear, EqualsTheProductInDoublePrecision) {
  for (const std::int64_t num_tokens : {1, 15, 16, 37, 200}) {
    const at::Tensor x = random_normal({num_tokens, 72}, 1);
    const at::Tensor weight = random_normal({50, 72}, 2), bias = random_normal({50}, 3);
    const at::Tensor product = x.to(at::kDouble).mm(weight.to(at::kDouble).t());
    EXPECT_TRUE(tensors_close(float_linear(x, weight, {}).to(at::kDouble), product, 1e-4));
    EXPECT_TRUE(tensors_close(float_linear(x, weight, bias).to(at::kDouble),
                              product + bias.to(at::kDouble), 1e-4));
  }
}

// Sizes around the fewest rows and around those that are multiplied together.
TEST(FloatLinear, RoundsProductsInBfloat16Once) {
  for (const std::int64_t num_tokens : {8, 9, 37, 1030}) {
    for (const std::int64_t in : {72, 73, 1300}) {
      const at::Tensor x =
          random_normal({num_tokens, in + 8}, 1).to(at::kBFloat16).narrow(1, 3, in);
      const at::Tensor weight = random_normal({150, in}, 2).to(at::kBFloat16);
      const at::Tensor bias = random_normal({150}, 3).to(at::kBFloat16);
      const at::Tensor product = x.to(at::kDouble).mm(weight.to(at::kDouble).t());
      const double tolerance = 0x1p-8 * 1.01 * product.abs().max().item<double>();
      EXPECT_TRUE(tensors_close(float_linear(x, weight, {}).to(at::kDouble), product, tolerance));
      EXPECT_TRUE(tensors_close(float_linear(x, weight, bias).to(at::kDouble),
                                product + bias.to(at::kDouble), tolerance + 0x1p-6));
    }
  }
}

// A weight of several parts where float32 is on the way, and rows that are multiplied eight at a time.
TEST(FloatLinear, RoundsLargeProductsOnceInEveryType) {
  for (const auto& [type, num_tokens] :
       {std::pair(at::kBFloat16, 600), {at::kBFloat16, 15}, {at::kHalf, 600}, {at::kHalf, 15}}) {
    const at::Tensor x = random_normal({num_tokens, 1300}, 1).to(type);
    const at::Tensor weight = random_normal({1700, 1300}, 2).to(type);
    const at::Tensor bias = random_normal({1700}, 3).to(type);
    const at::Tensor product = x.to(at::kDouble).mm(weight.to(at::kDouble).t());
    const double unit = type == at::kHalf ? 0x1p-11 : 0x1p-8;
    const double tolerance = unit * 1.01 * product.abs().max().item<double>();
    EXPECT_TRUE(tensors_close(float_linear(x, weight, {}).to(at::kDouble), product, tolerance));
    EXPECT_TRUE(tensors_close(float_linear(x, weight, bias).to(at::kDouble),
                              product + bias.to(at::kDouble), tolerance + 4 * unit));
  }
}

TEST(FloatLinear, DoesNotDependOnThreadsInBfloat16) {
  const at::Tensor x = random_normal({700, 1300}, 1).to(at::kBFloat16);
  const at::Tensor weight = random_normal({100, 1300}, 2).to(at::kBFloat16);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor expected = float_linear(x, weight, {});
  at::set_num_threads(3);
  EXPECT_TRUE(tensors_identical(float_linear(x, weight, {}), expected));
  at::set_num_threads(threads);
}

TEST(FloatLinear, DoesNotDependOnALoopAroundIt) {
  for (const std::int64_t num_tokens : {3, 60}) {
    const at::Tensor x = random_normal({num_tokens, 1300}, 1).to(at::kBFloat16);
    const at::Tensor weight = random_normal({700, 1300}, 2).to(at::kBFloat16);
    const at::Tensor expected = float_linear(x, weight, {});
    std::vector<at::Tensor> inside(8);
    parallel_chunks(8, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        inside[static_cast<std::size_t>(i)] = float_linear(x, weight, {});
      }
    });
    for (const at::Tensor& product : inside) {
      EXPECT_TRUE(tensors_identical(product, expected)) << num_tokens;
    }
  }
}

// Nothing is read from behind a row.
TEST(FloatLinear, RefusesOtherWidths) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t num_tokens : {1, 8, 9, 40}) {
      const at::Tensor x = random_normal({num_tokens, 96}, 1).to(type);
      EXPECT_THROW(float_linear(x, random_normal({50, 98}, 2).to(type), {}), Error);
      EXPECT_THROW(float_linear(x, random_normal({50, 64}, 2).to(type), {}), Error);
    }
  }
}

TEST(FloatLinear, RefusesOtherDevices) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t num_tokens : {1, 9, 40}) {
      const at::Tensor x = random_normal({num_tokens, 96}, 1).to(type);
      EXPECT_THROW(float_linear(x, x.to(at::kMeta), {}), Error);
    }
  }
}

TEST(FloatLinear, TakesNoRowsAndNoOutputs) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor weight = random_normal({50, 96}, 1).to(type);
    EXPECT_EQ(float_linear(weight.narrow(0, 0, 0), weight, {}).sizes(), at::IntArrayRef({0, 50}));
    for (const std::int64_t num_tokens : {1, 9, 40}) {
      const at::Tensor x = weight.narrow(0, 0, num_tokens);
      EXPECT_EQ(float_linear(x, weight.narrow(0, 0, 0), {}).sizes(),
                at::IntArrayRef({num_tokens, 0}));
    }
  }
}

TEST(FloatLinear, TakesStridedInputs) {
  const at::Tensor x = random_normal({72, 40}, 1).t(), weight = random_normal({72, 50}, 2).t();
  EXPECT_TRUE(tensors_close(float_linear(x, weight, {}), x.mm(weight.t()), 1e-4));
}

TEST(FloatLinear, IsDifferentiableInBfloat16) {
  const at::Tensor weight = random_normal({50, 72}, 2).to(at::kBFloat16);
  const at::Tensor gradient = random_normal({40, 50}, 4).to(at::kBFloat16);
  const at::Tensor x = random_normal({40, 72}, 1).to(at::kBFloat16).set_requires_grad(true);
  float_linear(x, weight, {}).backward(gradient);
  EXPECT_TRUE(tensors_close(x.grad().to(at::kFloat), gradient.mm(weight).to(at::kFloat), 0.3));
}

TEST(FloatLinear, IsDifferentiable) {
  const at::Tensor weight = random_normal({50, 72}, 2), bias = random_normal({50}, 3);
  const at::Tensor gradient = random_normal({40, 50}, 4);
  const at::Tensor x = random_normal({40, 72}, 1).set_requires_grad(true);
  float_linear(x, weight, bias).backward(gradient);
  EXPECT_TRUE(tensors_close(x.grad(), gradient.mm(weight), 1e-4));
  const at::Tensor trained = random_normal({50, 72}, 2).set_requires_grad(true);
  float_linear(x.detach(), trained, bias).backward(gradient);
  EXPECT_TRUE(tensors_close(trained.grad(), gradient.t().mm(x.detach()), 1e-4));
}

}  // namespace
}  // namespace kvc
