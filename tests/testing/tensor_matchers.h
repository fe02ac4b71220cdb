// Comparisons of tensors that say where they fail.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace kvc::testing {

// Shapes are equal and |actual - expected| <= tolerance everywhere (NaN is never close). A failure
// names the worst element's index and both values. Use: EXPECT_TRUE(tensors_close(logits, golden,
// 1e-5)).
::testing::AssertionResult tensors_close(const at::Tensor& actual, const at::Tensor& expected,
                                         double tolerance);

// Same type, shape and bits.
::testing::AssertionResult tensors_identical(const at::Tensor& actual, const at::Tensor& expected);

// max - min of `values`: the scale against which errors of logits are judged.
double spread(const at::Tensor& values);

}  // namespace kvc::testing
