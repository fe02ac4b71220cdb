#include "core/dtype.h"

#include <gtest/gtest.h>

namespace kvc {
namespace {

TEST(Dtype, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(Dtype::kBool); ++i) {
    const Dtype dtype = static_cast<Dtype>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_GT(bits_per_element(dtype), 0);
  }
  EXPECT_EQ(parse_dtype("f32"), std::nullopt);
  EXPECT_EQ(bits_per_element(Dtype::kBF16), 16);
}

}  // namespace
}  // namespace kvc
