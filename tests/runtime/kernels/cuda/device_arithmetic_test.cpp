// Arithmetic that CUDA kernels share with the CPU, by itself.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/code_planes.h"
#include "runtime/kernels/cuda/device_layout.h"
#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/device_rope.h"
#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"

namespace kvc {
namespace {

TEST(DeviceNumbers, WidenEveryNumberOf16Bits) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    EXPECT_EQ(float_bits(to_float(Float16{half})), float_bits(widen_float16(half))) << bits;
    EXPECT_EQ(float_bits(to_float(BFloat16{half})), float_bits(widen_bfloat16(half))) << bits;
  }
}

TEST(DeviceNumbers, NarrowEveryNumberOf16BitsToItself) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (std::isnan(to_float(Float16{half}))) {
      EXPECT_TRUE(std::isnan(to_float(narrow<Float16>(to_float(Float16{half})))));
    } else {
      EXPECT_EQ(narrow_bits(Float16{}, to_float(Float16{half})), half);
    }
    if (!std::isnan(to_float(BFloat16{half}))) {
      EXPECT_EQ(narrow_bits(BFloat16{}, to_float(BFloat16{half})), half);
    }
  }
}

TEST(DeviceNumbers, NarrowToTheNearestTiesToEven) {
  for (unsigned step = 0; step < 200000; ++step) {
    const float x = float_of_bits(0x33000000u + step * 5003u);  // 2^-25 up to beyond 65504
    if (x < 65520) {
      EXPECT_EQ(narrow_bits(Float16{}, x), narrow_float16(x, Rounding::kNearest)) << x;
    }
    EXPECT_EQ(narrow_bits(BFloat16{}, -x), narrow_bfloat16(-x)) << x;
  }
  EXPECT_EQ(narrow_bits(Float16{}, 65519.0f), 0x7BFF);
  EXPECT_EQ(narrow_bits(Float16{}, 65520.0f), 0x7C00);  // infinity
}

TEST(DeviceNumbers, FourFloat8NumbersAreWhatEachIs) {
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const std::uint32_t bytes[4] = {byte, byte ^ 0x80u, (byte + 77) % 256, 255 - byte};
    float x[4];
    float8_to_floats(bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24, 0.5f, x);
    for (int i = 0; i < 4; ++i) {
      const float expected = 0.5f * float8_to_float(static_cast<std::uint8_t>(bytes[i]));
      EXPECT_EQ(std::isnan(x[i]), std::isnan(expected)) << bytes[i];
      EXPECT_TRUE(std::isnan(expected) || x[i] == expected) << bytes[i];
    }
  }
}

TEST(DeviceNumbers, BytesOfWordsStandAboveABase) {
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const std::uint32_t bytes[4] = {byte, byte ^ 0xA5u, 255 - byte, byte ^ 0x3Cu};
    const std::uint32_t word = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(byte_above_base(word, i), kByteBase + static_cast<float>(bytes[i]));
      const float number = minimum_below_base(0.37f, -21.5f) + 0.37f * byte_above_base(word, i);
      EXPECT_NEAR(number, dequantise(bytes[i], 0.37f, -21.5f), 0.37f / 256);
    }
  }
}

TEST(DeviceNumbers, Float8HoldsItsOwnNumbersAndRoundsOthersToTheNearest) {
  for (int bits = 0; bits < 256; ++bits) {
    const float x = float8_to_float(static_cast<std::uint8_t>(bits));
    if ((bits & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(x));
      continue;
    }
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double size =
        exponent == 0 ? mantissa * std::exp2(-9) : (8 + mantissa) * std::exp2(exponent - 10);
    EXPECT_EQ(x, (bits & 0x80) != 0 ? -size : size);
    EXPECT_EQ(float_to_float8(x), bits);
    if ((bits & 0x7F) < 0x7E) {
      const float next = float8_to_float(static_cast<std::uint8_t>(bits + 1)),
                  middle = (x + next) / 2;
      EXPECT_EQ(float_to_float8(middle), bits % 2 == 0 ? bits : bits + 1) << middle;
      EXPECT_EQ(float_to_float8(x + (next - x) * 0.51f), bits + 1);
      EXPECT_EQ(float_to_float8(x + (next - x) * 0.49f), bits);
    }
  }
  EXPECT_EQ(float_to_float8(1e9f), 0x7E);
  EXPECT_EQ(float_to_float8(-1e9f), 0xFE);
}

TEST(DeviceSoftmax, PartsGiveTheWhole) {
  const float scores[] = {-3, 50, 49, 2, 51, -80};
  SoftmaxState total;
  float output = 0;
  for (int first = 0; first < 6; first += 2) {
    SoftmaxState part;
    raise_max(part, std::fmax(scores[first], scores[first + 1]));
    float of_part = 0;
    for (int i = first; i < first + 2; ++i) {
      part.sum += exp_below(scores[i], part.max);
      of_part += static_cast<float>(i) * exp_below(scores[i], part.max);
    }
    const SoftmaxFactors factors = combine_softmax(total, part);
    output = factors.total * output + factors.part * of_part;
    combine_softmax(total, SoftmaxState{});  // no tokens
  }
  double sum = 0, expected = 0;
  for (int i = 0; i < 6; ++i) {
    sum += std::exp(scores[i] - 51.0);
    expected += i * std::exp(scores[i] - 51.0);
  }
  EXPECT_EQ(total.max, 51);
  EXPECT_NEAR(total.sum, sum, 1e-6);
  EXPECT_NEAR(output / total.sum, expected / sum, 1e-5);
}

TEST(DeviceSoftmax, ScoresAreScaledThenCapped) {
  EXPECT_FLOAT_EQ(scaled_score(8, 0.5f, 0), 4);
  EXPECT_FLOAT_EQ(scaled_score(8, 0.5f, 2), 2 * std::tanh(2.0f));
}

TEST(DeviceSchedule, PartsCoverAllRowsOnceInWholeTiles) {
  for (const int num_rows : {0, 1, 31, 32, 33, 500, 1024}) {
    for (const int first_row : {0, 1, 32, 450}) {
      for (const int parts : {1, 2, 7, 40}) {
        int next = first_row, least = num_rows, most = 0;
        for (int part = 0; part < parts; ++part) {
          const PartRange range = split_rows(first_row, num_rows, 32, parts, part);
          if (range.first >= range.last) {
            continue;
          }
          EXPECT_EQ(range.first, next);
          EXPECT_TRUE(range.first == first_row || range.first % 32 == 0);
          next = range.last;
          const int tiles = (range.last + 31) / 32 - range.first / 32;
          least = std::min(least, tiles);
          most = std::max(most, tiles);
        }
        EXPECT_EQ(next, std::max(first_row, num_rows));
        EXPECT_LE(most - std::min(least, most), 1);
      }
    }
  }
}

TEST(DeviceSchedule, PartsFillTheMultiprocessorsUnlessTokensAreFew) {
  EXPECT_EQ(attention_parts(132, 8, 131072), 49);  // 392 blocks for 396 places
  EXPECT_EQ(attention_parts(132, 128, 8192), 3);   // 384
  EXPECT_EQ(attention_parts(132, 264, 8192), 3);   // 792 in two rounds
  EXPECT_EQ(attention_parts(132, 8, 1024), 16);    // two tiles each
  EXPECT_EQ(attention_parts(132, 1000, 8192), 1);
  EXPECT_EQ(attention_parts(132, 8, 5), 1);
}

TEST(DeviceRope, TurnsAPairByItsAngle) {
  float first = 3, second = 4;
  rotate_pair(0, 1, first, second);  // a quarter
  EXPECT_EQ(first, -4);
  EXPECT_EQ(second, 3);
}

TEST(DeviceTiles, EveryWidthUnpacksAsTheReferenceDoes) {
  TileLayout layout;
  for (int bits = 1; bits <= kWidestCode; ++bits) {
    layout.coefficients[bits] = bits == 5 ? 0 : 2;
  }
  const DeviceTiles tiles = device_layout(layout);
  std::vector<std::uint8_t> tile(static_cast<std::size_t>(layout.bytes()));
  for (std::size_t i = 0; i < tile.size(); ++i) {
    tile[i] = static_cast<std::uint8_t>(37 * i + i / 7);
  }
  std::vector<std::uint8_t> codes(
      static_cast<std::size_t>(layout.num_coefficients() * kTileTokens));
  unpack_tile_reference(layout, tile.data(), codes.data());
  for (int c = 0; c < tiles.num_coefficients; ++c) {
    const CoefficientPlace place = coefficient_place(tiles, c);
    for (int token = 0; token < kTileTokens; ++token) {
      EXPECT_EQ(unpack_code(tile.data() + place.byte, place.bits, token),
                codes[static_cast<std::size_t>(c * kTileTokens + token)]);
    }
  }
  EXPECT_EQ(coefficient_place(tiles, tiles.num_coefficients).byte, layout.code_bytes());
  for (int gain = 0; gain < kNumGains; ++gain) {
    EXPECT_EQ(gain_of(gain), kGains[gain]);
  }
  EXPECT_EQ(code_level(0, 8), first_level(8));
}

// A coefficient's codes of a tile's tokens, in any order of bits.
std::vector<std::uint8_t> some_planes(int bits, unsigned seed) {
  std::vector<std::uint8_t> planes(static_cast<std::size_t>(4 * bits) + 16);
  for (std::size_t i = 0; i < planes.size(); ++i) {
    planes[i] = static_cast<std::uint8_t>(37 * (i + seed) + 11 * seed * i);
  }
  return planes;
}
float low(std::uint32_t pair) { return low_of_pair<Float16>(pair) * 16777216.0f; }
float high(std::uint32_t pair) { return high_of_pair<Float16>(pair) * 16777216.0f; }

template <int kKind>
void add_coefficient_fields(int bits, const std::uint8_t* planes, int eighth, float (&sums)[8]) {
  if ((plane_kinds(bits) >> kKind & 1) == 0) {
    return;
  }
  constexpr int kPlane = plane_bits(kKind);
  std::uint32_t fields[4];
  coefficient_fields<kPlane>(planes + plane_offset(bits, kPlane) + kPlane * eighth, fields);
  for (int j = 0; j < 4; ++j) {
    const auto factor = static_cast<float>(1 << field_factor(kKind, j));
    sums[j] += low(fields[j]) * factor;
    sums[4 + j] += high(fields[j]) * factor;
  }
}

TEST(CodePlanes, OfACoefficientAddUpToCodesOfEightTokens) {
  for (int bits = 1; bits <= kMostCodeBits; ++bits) {
    const std::vector<std::uint8_t> planes = some_planes(bits, 5);
    for (int eighth = 0; eighth < 4; ++eighth) {
      float sums[8] = {};
      add_coefficient_fields<0>(bits, planes.data(), eighth, sums);
      add_coefficient_fields<1>(bits, planes.data(), eighth, sums);
      add_coefficient_fields<2>(bits, planes.data(), eighth, sums);
      add_coefficient_fields<3>(bits, planes.data(), eighth, sums);
      add_coefficient_fields<4>(bits, planes.data(), eighth, sums);
      for (int token = 0; token < 8; ++token) {
        EXPECT_EQ(sums[token] * sum_unit(bits) / 16777216.0f,
                  static_cast<float>(unpack_code(planes.data(), bits, 8 * eighth + token)))
            << bits << " bits, token " << 8 * eighth + token;
      }
    }
  }
}

template <int kPlane>
void add_token_fields(int bits, const std::uint8_t* first, const std::uint8_t* second, int quad,
                      float (&sums)[2][4]) {
  if ((bits & kPlane) == 0) {
    return;
  }
  const int offset = plane_offset(bits, kPlane);
  std::uint32_t fields[4];
  token_fields<kPlane>(first + offset, second + offset, quad, fields);
  for (int j = 0; j < 4; ++j) {
    const float factor =
        static_cast<float>(1 << key_factor(bits) << key_plane_factor(bits, kPlane)) *
        key_unit<kPlane>(quad, j);
    sums[0][j] += low(fields[j]) * factor;
    sums[1][j] += high(fields[j]) * factor;
  }
}

TEST(CodePlanes, OfTwoCoefficientsAddUpToCodesOfFourTokens) {
  for (int bits = 1; bits <= kMostCodeBits; ++bits) {
    const std::vector<std::uint8_t> of[2] = {some_planes(bits, 1), some_planes(bits, 9)};
    for (int quad = 0; quad < 8; ++quad) {
      float sums[2][4] = {};
      add_token_fields<8>(bits, of[0].data(), of[1].data(), quad, sums);
      add_token_fields<4>(bits, of[0].data(), of[1].data(), quad, sums);
      add_token_fields<2>(bits, of[0].data(), of[1].data(), quad, sums);
      add_token_fields<1>(bits, of[0].data(), of[1].data(), quad, sums);
      for (int i = 0; i < 8; ++i) {
        EXPECT_EQ(sums[i / 4][i % 4] / 16777216.0f,
                  static_cast<float>(unpack_code(of[i / 4].data(), bits, 4 * quad + i % 4)))
            << bits << " bits, coefficient " << i / 4 << ", token " << 4 * quad + i % 4;
      }
    }
  }
}

}  // namespace
}  // namespace kvc
