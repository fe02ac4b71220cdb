#include "model/kernels/gated_silu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "model/kernels/cpu_features.h"
#include "model/kernels/element.h"
#include "tests/model/kernels/random_values.h"

namespace kvc {
namespace {

using Numbers = std::vector<std::uint16_t>;

Numbers bfloat16_of_all(const std::vector<float>& values) {
  Numbers numbers;
  for (const float value : values) {
    numbers.push_back(bfloat16_of(value));
  }
  return numbers;
}

TEST(GatedSilu, IsTheGateTimesItsSigmoidTimesTheOther) {
  const Numbers gate = bfloat16_of_all({0, 1, -1}), up = bfloat16_of_all({5, 2, 4});
  Numbers out(3);
  gated_silu_reference(gate.data(), up.data(), 3, out.data());
  EXPECT_EQ(out, bfloat16_of_all({0, 2 * 0.73046875f, 4 * -0.26953125f}));
}

TEST(GatedSilu, MatchesReference) {
  for (const std::int64_t count : {1, 15, 16, 17, 4000}) {
    std::vector<float> gates = testing::random_values(count, 1);
    for (float& gate : gates) {
      gate *= 8;
    }
    const Numbers gate = bfloat16_of_all(gates);
    const Numbers up = bfloat16_of_all(testing::random_values(count, 2));
    Numbers actual(gate.size() + 1, 0x1234), expected(gate.size());
    gated_silu(gate.data(), up.data(), count, actual.data());
    gated_silu_reference(gate.data(), up.data(), count, expected.data());
    EXPECT_EQ(actual.back(), 0x1234);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const float x = float_of_bfloat16(actual[i]), y = float_of_bfloat16(expected[i]);
      // A number between two rounds to either, twice.
      ASSERT_NEAR(x, y, 0x1p-6 * std::abs(y) + 1e-9) << "gate " << gates[i];
    }
  }
}

TEST(GatedSilu, KeepsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Numbers gate = bfloat16_of_all({kInfinity, std::nanf(""), 3e38f, -3e38f, 1});
  const Numbers up = bfloat16_of_all({1, 1, 1, 1, kInfinity});
  Numbers out(gate.size());
  gated_silu(gate.data(), up.data(), static_cast<std::int64_t>(gate.size()), out.data());
  EXPECT_EQ(float_of_bfloat16(out[0]), kInfinity);
  EXPECT_TRUE(std::isnan(float_of_bfloat16(out[1])));
  EXPECT_EQ(out[2], gate[2]);
  EXPECT_EQ(float_of_bfloat16(out[3]), 0);
  EXPECT_EQ(float_of_bfloat16(out[4]), kInfinity);
}

TEST(GatedSilu, WithoutTheInstructionsIsTheReference) {
  const Numbers gate = bfloat16_of_all(testing::random_values(100, 1));
  const Numbers up = bfloat16_of_all(testing::random_values(100, 2));
  Numbers actual(100), expected(100);
  allow_avx512_bf16(false);
  EXPECT_FALSE(gated_silu_is_fast());
  gated_silu(gate.data(), up.data(), 100, actual.data());
  allow_avx512_bf16(true);
  gated_silu_reference(gate.data(), up.data(), 100, expected.data());
  EXPECT_EQ(actual, expected);
}

}  // namespace
}  // namespace kvc
