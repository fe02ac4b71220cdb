#include "runtime/kernels/code_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/runtime/kernels/kernel_inputs.h"
#include "tests/runtime/kernels/tile_widths.h"

namespace kvc {
namespace {

using testing::random_numbers;
using testing::widths_of;

TileLayout layout_of(const std::vector<std::int64_t>& from_width_one, bool gain = false) {
  TileLayout layout{.coefficients = {}, .gain = gain};
  std::copy(from_width_one.begin(), from_width_one.end(), layout.coefficients + 1);
  return layout;
}

const std::vector<TileLayout> kLayouts = {
    layout_of({}),
    layout_of({3}),
    layout_of({0, 1}),
    layout_of({0, 0, 2}),
    layout_of({0, 0, 0, 5}),
    layout_of({0, 0, 0, 0, 1}),
    layout_of({0, 0, 0, 0, 0, 3}),
    layout_of({0, 0, 0, 0, 0, 0, 2}),
    layout_of({0, 0, 0, 0, 0, 0, 0, 4}),
    layout_of({2, 3, 1, 5, 4, 3, 1, 7}, true),
};

// Token 0 has the lowest bits of a plane; the plane of 2 bits comes before that of 1.
TEST(CodeTiles, ThreeBitsAreAPlaneOfTwoAndOneOfOne) {
  const TileLayout layout = layout_of({0, 0, 1});
  std::vector<std::uint8_t> codes(kTileTokens, 0), tile(12, 255);
  codes[0] = 0b101;
  codes[9] = 0b110;
  pack_tile(layout, codes.data(), nullptr, tile.data());
  std::vector<std::uint8_t> expected(12, 0);
  expected[0] = 0b10;
  expected[2] = 0b1100;
  expected[8] = 0b1;
  EXPECT_EQ(tile, expected);
}

TEST(CodeTiles, PackAndUnpackEveryWidthAsTheReferenceDoes) {
  std::mt19937 random(1);
  for (const TileLayout& layout : kLayouts) {
    const std::vector<int> widths = widths_of(layout);
    std::vector<std::uint8_t> codes, gains(kTileTokens);
    for (const int bits : widths) {
      for (std::int64_t token = 0; token < kTileTokens; ++token) {
        codes.push_back(static_cast<std::uint8_t>(random() & ((1u << bits) - 1)));
      }
    }
    for (std::uint8_t& gain : gains) {
      gain = static_cast<std::uint8_t>(random() % kNumGains);
    }
    const auto bytes = static_cast<std::size_t>(layout.bytes());
    std::vector<std::uint8_t> tile(bytes), expected(bytes);
    pack_tile(layout, codes.data(), gains.data(), tile.data());
    pack_tile_reference(layout, codes.data(), gains.data(), expected.data());
    EXPECT_EQ(tile, expected);
    std::vector<std::uint8_t> unpacked(codes.size()), by_reference(codes.size());
    unpack_tile(layout, tile.data(), unpacked.data());
    unpack_tile_reference(layout, tile.data(), by_reference.data());
    EXPECT_EQ(unpacked, codes);
    EXPECT_EQ(by_reference, codes);
  }
}

TEST(CodeTiles, CodesStandForTheMiddleOfTheirStep) {
  const TileLayout layout = layout_of({0, 1, 0, 0, 0, 0, 0, 1});
  const std::vector<float> steps = {0.25f, 2};
  std::vector<float> z(2 * kTileTokens, 0), back(z.size());
  const std::vector<float> wide = {0.3f, -0.3f, 100, -100}, narrow = {1, -0.1f, 9, -9};
  for (std::size_t token = 0; token < wide.size(); ++token) {
    z[2 * token] = wide[token];
    z[2 * token + 1] = narrow[token];
  }
  std::vector<std::uint8_t> tile(static_cast<std::size_t>(layout.bytes()));
  encode_tile(layout, z.data(), steps.data(), tile.data());
  decode_tile(layout, tile.data(), steps.data(), back.data());
  const std::vector<float> expected = {0.375f, 1, -0.375f, -1, 31.875f, 3, -31.875f, -3};
  EXPECT_EQ(std::vector<float>(back.begin(), back.begin() + 8), expected);
}

// Lanes are written in any order, over what other tokens left there.
TEST(CodeTiles, TokensWrittenOneByOneAreTheWholeTile) {
  for (const TileLayout& layout : kLayouts) {
    const std::int64_t count = layout.num_coefficients();
    const std::vector<float> z = random_numbers(count * kTileTokens, 3);
    const std::vector<float> steps(static_cast<std::size_t>(count), 0.3f);
    const auto bytes = static_cast<std::size_t>(layout.bytes());
    std::vector<std::uint8_t> expected(bytes), tile(bytes, 0xA5);
    encode_tile(layout, z.data(), steps.data(), expected.data());
    for (std::int64_t i = 0; i < kTileTokens; ++i) {
      const std::int64_t lane = i * 13 % kTileTokens;
      encode_token(layout, z.data() + lane * count, steps.data(), lane, tile.data());
    }
    EXPECT_EQ(tile, expected);
  }
}

// Every gain is tried by hand.
TEST(CodeTiles, TheGainIsTheOneWithTheLeastError) {
  const TileLayout layout = layout_of({0, 0, 0, 6}, true);
  const std::int64_t count = layout.num_coefficients();
  std::vector<float> z = random_numbers(count * kTileTokens, 1), back(z.size());
  for (std::int64_t token = 0; token < kTileTokens; ++token) {
    for (std::int64_t c = 0; c < count; ++c) {
      z[static_cast<std::size_t>(token * count + c)] *=
          std::exp2(static_cast<float>(token % 7) - 2);
    }
  }
  const std::vector<float> steps(static_cast<std::size_t>(count), 0.4f);
  std::vector<std::uint8_t> tile(static_cast<std::size_t>(layout.bytes()));
  encode_tile(layout, z.data(), steps.data(), tile.data());
  decode_tile(layout, tile.data(), steps.data(), back.data());
  for (std::int64_t token = 0; token < kTileTokens; ++token) {
    double least = INFINITY, actual = 0;
    for (const float gain : kGains) {
      double error = 0;
      for (std::int64_t c = 0; c < count; ++c) {
        const double x = z[static_cast<std::size_t>(token * count + c)], step = 0.4f * gain;
        const double value = (std::clamp(std::floor(x / step), -8.0, 7.0) + 0.5) * step;
        error += (x - value) * (x - value);
      }
      least = std::min(least, error);
    }
    for (std::int64_t c = 0; c < count; ++c) {
      const auto at = static_cast<std::size_t>(token * count + c);
      actual += std::pow(double{z[at]} - back[at], 2);
    }
    EXPECT_NEAR(actual, least, 1e-5 * (1 + least)) << token;
  }
}

}  // namespace
}  // namespace kvc
