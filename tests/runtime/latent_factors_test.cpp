// Keys rebuilt from latents, of which some are numbers of the latent as they are.
#include "runtime/compression/reconstruction.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/testing/tensor_matchers.h"

namespace kvc {
namespace {

// Rows 1, 4 and 5 are unit vectors; row 2 has a one among others, row 3 a single number that is no one.
at::Tensor projection() {
  at::manual_seed(3);
  at::Tensor proj = at::randn({6, 4});
  for (const auto& [row, column] : {std::pair(1, 2), {4, 0}, {5, 3}}) {
    proj[row].zero_();
    proj[row][column] = 1;
  }
  proj[2][1] = 1;
  proj[3].zero_();
  proj[3][2] = 0.5;
  return proj;
}

TEST(KeptChannels, AreTheUnitRows) {
  const KeptChannels kept = kept_channels(projection());
  EXPECT_TRUE(at::equal(kept.channels, at::tensor({1, 4, 5}, at::kLong)));
  EXPECT_TRUE(at::equal(kept.numbers, at::tensor({2, 0, 3}, at::kLong)));
  EXPECT_TRUE(at::equal(kept.others, at::tensor({0, 2, 3}, at::kLong)));
  EXPECT_FALSE(kept_channels(at::randn({6, 4})).channels.defined());
}

TEST(KeptChannels, GiveTheKeysOfTheWholeProjection) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor proj = projection().to(dtype), latent = at::randn({7, 4}).to(dtype);
    Reconstruction layer{proj, proj};
    const at::Tensor plain = rebuild_key(layer, latent);
    layer.kept = kept_channels(proj);
    const at::Tensor rebuilt = rebuild_key(layer, latent);
    EXPECT_TRUE(testing::tensors_close(rebuilt, plain, dtype == at::kFloat ? 1e-6 : 1e-2));
    EXPECT_TRUE(at::equal(rebuilt.select(1, 4), latent.select(1, 0)));  // bitwise as stored
  }
}

}  // namespace
}  // namespace kvc
