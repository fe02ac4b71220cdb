#include "runtime/kernels/fast_narrow.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"

namespace kvc {
namespace {

TEST(FastNarrow, EqualsTheOneStepAtATime) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((bits & 0x7C00) != 0x7C00) {
      ASSERT_EQ(fast_widen_float16(half), widen_float16(half)) << bits;
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(x)) {
      continue;
    }
    ASSERT_EQ(fast_nearest_float16(x), narrow_float16(x, Rounding::kNearest)) << x;
    ASSERT_EQ(fast_float16_below(x), narrow_float16(x, Rounding::kDown)) << x;
    ASSERT_EQ(fast_float16_above(x), narrow_float16(x, Rounding::kUp)) << x;
  }
}

}  // namespace
}  // namespace kvc
