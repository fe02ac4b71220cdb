#include "model/fused_ops.h"

#include <gtest/gtest.h>

#include "model/decoder.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

// A tensor that wants a gradient takes the composed operators: the reference of the fused ones.
at::Tensor composed(const at::Tensor& x) { return x.detach().set_requires_grad(true); }

class FusedOps : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  // One unit in the last place: a sum in another order may round the other way.
  double tolerance() const {
    return GetParam() == at::kFloat ? 2e-6 : GetParam() == at::kHalf ? 4e-3 : 3.2e-2;
  }
};

TEST_P(FusedOps, RmsNormEqualsTheComposition) {
  for (const std::int64_t size : {1, 15, 72, 257}) {
    const at::Tensor wide = random_normal({37, 3, size + 5}, 1).to(GetParam());
    const at::Tensor weight = random_normal({size}, 2).to(GetParam());
    const at::Tensor x = wide.narrow(-1, 0, size);  // rows with gaps
    ASSERT_TRUE(can_fuse(x));
    ASSERT_FALSE(can_fuse(composed(x)));
    EXPECT_TRUE(tensors_close(rms_norm(x, weight, 1e-6),
                              rms_norm(composed(x), weight, 1e-6).detach(), tolerance()));
    EXPECT_TRUE(tensors_close(rms_norm(x.select(1, 2), weight, 1e-6),
                              rms_norm(x, weight, 1e-6).select(1, 2), 0));
  }
}

// A float32 weight beside narrower states: the product is rounded once.
TEST_P(FusedOps, RmsNormWithAWideWeightRoundsOnce) {
  const at::Tensor x = random_normal({37, 72}, 1).to(GetParam()), weight = random_normal({72}, 2);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor expected =
      (wide / (wide.square().mean(-1, true) + 1e-6).sqrt() * weight).to(GetParam());
  EXPECT_TRUE(tensors_close(rms_norm(x, weight, 1e-6), expected, tolerance()));
  EXPECT_TRUE(tensors_close(rms_norm(composed(x), weight, 1e-6).detach(), expected, tolerance()));
}

// Rows with gaps, as halves of one product have them.
TEST_P(FusedOps, GatedSiluEqualsTheComposition) {
  for (const std::int64_t size : {1, 16, 37, 320}) {
    const at::Tensor both = (4 * random_normal({37, 2 * size}, 1)).to(GetParam());
    const at::Tensor gate = both.narrow(-1, 0, size), up = both.narrow(-1, size, size);
    ASSERT_FALSE(can_fuse_gated_silu(composed(gate), up));
    if (can_fuse_gated_silu(gate, up)) {
      const at::Tensor expected = at::silu(gate) * up;
      const at::Tensor near = 0x1p-6 * expected.abs() + 1e-6;
      EXPECT_TRUE(((fused_gated_silu(gate, up) - expected).abs() <= near).all().item<bool>());
    }
  }
}

TEST_P(FusedOps, RotationEqualsTheComposition) {
  for (const std::int64_t rotary_dim : {24, 10}) {
    const RopeTable rope({.rotary_dim = rotary_dim}, GetParam());
    const at::Tensor positions = at::arange(50, 87, at::kLong);
    const at::Tensor fused_projection = random_normal({37, 9, 24}, 3).to(GetParam());
    const at::Tensor query = fused_projection.narrow(1, 2, 4);
    EXPECT_TRUE(testing::tensors_identical(rope.rotate(query, positions),
                                           rope.rotate(composed(query), positions).detach()));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FusedOps, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& row) { return c10::toString(row.param); });

}  // namespace
}  // namespace kvc
