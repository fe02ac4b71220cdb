#include "runtime/kernels/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"
#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc {
namespace {

using testing::random_numbers;

TEST(NarrowFloat16, RoundsAsAsked) {
  EXPECT_EQ(narrow_float16(1.0f, Rounding::kNearest), 0x3C00);
  EXPECT_EQ(narrow_float16(1.0001f, Rounding::kNearest), 0x3C00);
  EXPECT_EQ(narrow_float16(1.0001f, Rounding::kUp), 0x3C01);
  EXPECT_EQ(narrow_float16(1.0001f, Rounding::kDown), 0x3C00);
  EXPECT_EQ(narrow_float16(-1.0001f, Rounding::kDown), 0xBC01);
  EXPECT_EQ(narrow_float16(-1.0001f, Rounding::kUp), 0xBC00);
  EXPECT_EQ(narrow_float16(1e9f, Rounding::kUp), 0x7BFF);
  EXPECT_EQ(narrow_float16(1e-9f, Rounding::kUp), 1);
  EXPECT_EQ(narrow_float16(1e-9f, Rounding::kNearest), 0);
  EXPECT_EQ(narrow_float16(2047.5f, Rounding::kUp), 0x6800);  // 2048
}

TEST(NarrowFloat16, KeepsEveryFiniteNumber) {
  for (int bits = 0; bits < 0x7C00; ++bits) {
    for (const auto rounding : {Rounding::kNearest, Rounding::kDown, Rounding::kUp}) {
      ASSERT_EQ(narrow_float16(widen_float16(static_cast<std::uint16_t>(bits)), rounding), bits);
    }
  }
}

// One row of two channels, one scale: -1 and 2 become the codes 0 and 255.
TEST(QuantiseRowsReference, SpansTheNumbersThatShareAScale) {
  const float from[] = {-1, 2};
  std::uint8_t to[6];
  quantise_rows_reference({.from = from, .count = 1, .width = 2, .head_dim = 2, .to = to});
  EXPECT_EQ(to[0], 0);
  EXPECT_EQ(to[1], 255);
  EXPECT_EQ(widen_float16(load_as<std::uint16_t>(to, 2)), -1);
  EXPECT_NEAR(widen_float16(load_as<std::uint16_t>(to, 1)), 3.0 / 255, 1e-5);
}

TEST(QuantiseRowsReference, GivesTheFirstCodeToWhatIsNoNumber) {
  const float from[] = {-1, NAN, 2, 0.5f};
  std::uint8_t to[8];
  quantise_rows_reference({.from = from, .count = 1, .width = 4, .head_dim = 4, .to = to});
  EXPECT_EQ(to[1], 0);
  EXPECT_EQ(to[2], 255);
}

// Four channels, one scale: halves of bytes hold channels 0 | 2 and 1 | 3.
TEST(QuantiseRowsReference, PacksFourBits) {
  const float from[] = {0, 15, 3, 8};
  std::uint8_t to[6];
  quantise_rows_reference(
      {.from = from, .count = 1, .width = 4, .head_dim = 4, .element = KvElement::kInt4, .to = to});
  EXPECT_EQ(to[0], 0x30);
  EXPECT_EQ(to[1], 0x8F);
}

// Eight channels, one scale: bytes hold channels 0 | 2 | 4 | 6 and 1 | 3 | 5 | 7.
TEST(QuantiseRowsReference, PacksTwoBits) {
  const float from[] = {0, 1, 2, 3, 3, 2, 1, 0};
  std::uint8_t to[6];
  quantise_rows_reference(
      {.from = from, .count = 1, .width = 8, .head_dim = 8, .element = KvElement::kInt2, .to = to});
  EXPECT_EQ(to[0], 0 | 2 << 2 | 3 << 4 | 1 << 6);
  EXPECT_EQ(to[1], 1 | 3 << 2 | 2 << 4 | 0 << 6);
}

// Element, scales, head_dim, heads, type of the numbers.
using Shape = std::tuple<KvElement, KvScales, std::int64_t, std::int64_t, KvElement>;

class QuantiseRows : public ::testing::TestWithParam<Shape> {
 protected:
  QuantiseRows() {
    const auto [element, scales, head_dim, heads, type] = GetParam();
    width = head_dim * heads;
    count = scales == KvScales::kPerChannel ? 2 * kQuantisedRows : 37;
    numbers = random_numbers(count * width, 1);
    numbers[3] = 100;  // an outlier
    for (std::int64_t i = 0; i < 2 * width; ++i) {
      numbers[static_cast<std::size_t>(width + i)] = 0.3f;  // rows of one number
    }
    halves.resize(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      halves[i] = type == KvElement::kBFloat16 ? narrow_bfloat16(numbers[i])
                                               : narrow_float16(numbers[i], Rounding::kNearest);
    }
    const void* from = type == KvElement::kFloat32 ? static_cast<const void*>(numbers.data())
                                                   : static_cast<const void*>(halves.data());
    params = {from, type, count, width, head_dim, element, scales, nullptr};
  }
  std::vector<std::uint8_t> quantise(void (*kernel)(const QuantiseParams&)) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(
        kv_rows_bytes(count, width, params.head_dim, params.element, params.scales)));
    params.to = bytes.data();
    kernel(params);
    return bytes;
  }
  std::int64_t width, count;
  std::vector<float> numbers;
  std::vector<std::uint16_t> halves;
  QuantiseParams params;
};

TEST_P(QuantiseRows, KeepsNumbersWithinHalfAScale) {
  const std::vector<std::uint8_t> bytes = quantise(quantise_rows);
  const void* block = bytes.data();
  const KvRows rows{&block, count, count, params.element, params.scales};
  const KvRows source{&params.from, count, count, params.from_element};
  const bool per_row = params.scales == KvScales::kPerRow;
  for (std::int64_t row = 0; row < count; ++row) {
    for (std::int64_t channel = 0; channel < width; ++channel) {
      const std::int64_t index =
          per_row ? 2 * (channel / quantised_group(params.head_dim)) : channel;
      const float scale = widen_float16(
          load_as<std::uint16_t>(kv_row_place(rows, width, params.head_dim, row).scales, index));
      const float x = kv_element(source, width, params.head_dim, row, channel);
      ASSERT_NEAR(kv_element(rows, width, params.head_dim, row, channel), x,
                  scale * 0.50002 + std::fabs(x) * 1e-6)
          << row << " " << channel;
    }
  }
}

TEST_P(QuantiseRows, MatchesReference) {
  EXPECT_EQ(quantise(quantise_rows), quantise(quantise_rows_reference));
}

TEST_P(QuantiseRows, DequantisesAsTheReferenceDoes) {
  const std::vector<std::uint8_t> bytes = quantise(quantise_rows_reference);
  const void* block = bytes.data();
  const KvRows rows{&block, count, count, params.element, params.scales};
  for (const KvElement to : {KvElement::kFloat32, KvElement::kBFloat16, KvElement::kFloat16}) {
    std::vector<std::uint8_t> actual(static_cast<std::size_t>((count - 5) * width * 4));
    std::vector<std::uint8_t> expected(actual.size());
    dequantise_rows({rows, width, params.head_dim, 3, count - 2, to, actual.data()});
    dequantise_rows_reference({rows, width, params.head_dim, 3, count - 2, to, expected.data()});
    EXPECT_EQ(actual, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, QuantiseRows,
    ::testing::Combine(::testing::Values(KvElement::kInt8, KvElement::kInt4),
                       ::testing::Values(KvScales::kPerRow, KvScales::kPerChannel),
                       ::testing::Values(6, 8, 20, 64, 72, 80, 96, 128), ::testing::Values(1, 3),
                       ::testing::Values(KvElement::kFloat32, KvElement::kBFloat16,
                                         KvElement::kFloat16)));
INSTANTIATE_TEST_SUITE_P(
    ShapesOfTwoBits, QuantiseRows,
    ::testing::Combine(::testing::Values(KvElement::kInt2),
                       ::testing::Values(KvScales::kPerRow, KvScales::kPerChannel),
                       ::testing::Values(8, 20, 64, 72, 80, 96, 128), ::testing::Values(1, 3),
                       ::testing::Values(KvElement::kFloat32, KvElement::kBFloat16,
                                         KvElement::kFloat16)));

}  // namespace
}  // namespace kvc
