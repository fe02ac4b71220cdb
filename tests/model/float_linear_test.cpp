#include "model/float_linear.h"

#include <gtest/gtest.h>

#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

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

TEST(FloatLinear, TakesStridedInputs) {
  const at::Tensor x = random_normal({72, 40}, 1).t(), weight = random_normal({72, 50}, 2).t();
  EXPECT_TRUE(tensors_close(float_linear(x, weight, {}), x.mm(weight.t()), 1e-4));
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
