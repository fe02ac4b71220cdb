#include "runtime/kernels/code_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/code_tiles.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/kernels/unpack_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void unpack(const TileLayout& layout, const std::uint8_t* tile, std::uint8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  unpack_tile_reference(layout, tile, codes);
#else
  unpack_codes(layout, tile, kTileTokens, codes);
#endif
}

// The codes of one coefficient's tokens lose their lowest bits to a plane after another.
void pack(const TileLayout& layout, const std::uint8_t* codes, const std::uint8_t* gains,
          std::uint8_t* tile) {
  std::uint8_t* to = tile;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    for (std::int64_t i = 0; i < layout.coefficients[bits]; ++i, codes += kTileTokens) {
      int left = bits;
      for (int plane = kWidestCode; plane >= 1; plane /= 2) {
        if ((bits & plane) == 0) {
          continue;
        }
        left -= plane;
        const std::int64_t per_byte = 8 / plane;
        for (std::int64_t byte = 0; byte < plane * kTileTokens / 8; ++byte) {
          int value = 0;
          for (std::int64_t j = 0; j < per_byte; ++j) {
            value |= ((codes[byte * per_byte + j] >> left) & ((1 << plane) - 1)) << (j * plane);
          }
          to[byte] = static_cast<std::uint8_t>(value);
        }
        to += plane * kTileTokens / 8;
      }
    }
  }
  if (layout.gain) {
    std::copy_n(gains, kTileTokens, to);
  }
}

// What one token's codes would be under a gain.
struct TokenCodes {
  const TileLayout& layout;
  const float* z;      // [num_coefficients]
  const float* steps;  // likewise

  // To codes[c * stride].
  void write(float gain, std::int64_t stride, std::uint8_t* codes) const {
    std::int64_t c = 0;
    for (int bits = kWidestCode; bits >= 1; --bits) {
      const float low = static_cast<float>(-(1 << (bits - 1))), high = -low - 1;
      for (const std::int64_t end = c + layout.coefficients[bits]; c < end; ++c) {
        const float level = std::min(std::max(low, std::floor(z[c] / (steps[c] * gain))), high);
        codes[c * stride] = static_cast<std::uint8_t>(level - low);
      }
    }
  }

  // The gain of the least squared error, the first of equal ones. A lane holds a gain.
  std::uint8_t best_gain() const {
    const hn::CappedTag<float, kNumGains> d;
    const std::size_t lanes = hn::Lanes(d);
    float errors[kNumGains];
    for (std::size_t first = 0; first < kNumGains; first += lanes) {
      const auto gains = hn::LoadU(d, kGains + first);
      auto sum = hn::Zero(d);
      std::int64_t c = 0;
      for (int bits = kWidestCode; bits >= 1; --bits) {
        const auto low = hn::Set(d, static_cast<float>(-(1 << (bits - 1))));
        const auto high = hn::Set(d, static_cast<float>((1 << (bits - 1)) - 1));
        for (const std::int64_t end = c + layout.coefficients[bits]; c < end; ++c) {
          const auto number = hn::Set(d, z[c]), step = hn::Mul(hn::Set(d, steps[c]), gains);
          const auto level = hn::Min(hn::Max(low, hn::Floor(hn::Div(number, step))), high);
          const auto coded = hn::Mul(hn::Add(level, hn::Set(d, 0.5f)), step);
          const auto difference = hn::Sub(number, coded);
          sum = hn::Add(sum, hn::Mul(difference, difference));
        }
      }
      hn::StoreU(sum, d, errors + first);
    }
    const float* least = std::min_element(errors, errors + kNumGains);
    const bool is_number = *least < std::numeric_limits<float>::infinity();
    return is_number ? static_cast<std::uint8_t>(least - errors) : kUnitGain;
  }
};

void encode(const TileLayout& layout, const float* z, const float* steps, std::uint8_t* tile) {
  const std::int64_t count = layout.num_coefficients();
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * kTileTokens));
  std::uint8_t gains[kTileTokens];
  for (std::int64_t token = 0; token < kTileTokens; ++token) {
    const TokenCodes of_token{layout, z + token * count, steps};
    gains[token] = layout.gain ? of_token.best_gain() : kUnitGain;
    of_token.write(kGains[gains[token]], kTileTokens, codes.data() + token);
  }
  pack(layout, codes.data(), gains, tile);
}

// A token's codes lose their lowest bits to a plane after another, as in pack().
void encode_lane(const TileLayout& layout, const float* z, const float* steps, std::int64_t lane,
                 std::uint8_t* tile) {
  const TokenCodes of_token{layout, z, steps};
  const std::uint8_t gain = layout.gain ? of_token.best_gain() : kUnitGain;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(layout.num_coefficients()));
  of_token.write(kGains[gain], 1, codes.data());
  const std::uint8_t* code = codes.data();
  std::uint8_t* planes = tile;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    for (std::int64_t i = 0; i < layout.coefficients[bits]; ++i, ++code) {
      int left = bits;
      for (int plane = kWidestCode; plane >= 1; plane /= 2) {
        if ((bits & plane) == 0) {
          continue;
        }
        left -= plane;
        const int mask = (1 << plane) - 1;
        const auto shift = static_cast<int>(lane * plane % 8);
        std::uint8_t& byte = planes[lane * plane / 8];
        byte = static_cast<std::uint8_t>((byte & ~(mask << shift)) |
                                         ((*code >> left & mask) << shift));
        planes += plane * kTileTokens / 8;
      }
    }
  }
  if (layout.gain) {
    planes[lane] = gain;
  }
}

void decode(const TileLayout& layout, const std::uint8_t* tile, const float* steps, float* z) {
  const std::int64_t count = layout.num_coefficients();
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * kTileTokens));
  unpack(layout, tile, codes.data());
  float gains[kTileTokens];
  tile_gains(layout, tile, gains);
  std::int64_t c = 0;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    for (const std::int64_t end = c + layout.coefficients[bits]; c < end; ++c) {
      for (std::int64_t token = 0; token < kTileTokens; ++token) {
        const auto code =
            static_cast<float>(codes[static_cast<std::size_t>(c * kTileTokens + token)]);
        z[token * count + c] = (code + first_level(bits)) * (steps[c] * gains[token]);
      }
    }
  }
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(unpack);
HWY_EXPORT(pack);
HWY_EXPORT(encode);
HWY_EXPORT(encode_lane);
HWY_EXPORT(decode);

void unpack_tile(const TileLayout& layout, const std::uint8_t* tile, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(unpack)(layout, tile, codes);
}

void pack_tile(const TileLayout& layout, const std::uint8_t* codes, const std::uint8_t* gains,
               std::uint8_t* tile) {
  HWY_DYNAMIC_DISPATCH(pack)(layout, codes, gains, tile);
}

void encode_tile(const TileLayout& layout, const float* z, const float* steps, std::uint8_t* tile) {
  HWY_DYNAMIC_DISPATCH(encode)(layout, z, steps, tile);
}

void encode_token(const TileLayout& layout, const float* z, const float* steps, std::int64_t lane,
                  std::uint8_t* tile) {
  HWY_DYNAMIC_DISPATCH(encode_lane)(layout, z, steps, lane, tile);
}

void encode_tokens(const TileLayout& layout, const float* z, const float* steps, std::int64_t lane,
                   std::int64_t count, std::uint8_t* tile) {
  if (count == kTileTokens) {
    return encode_tile(layout, z, steps, tile);
  }
  if (lane == 0) {
    std::fill_n(tile, layout.bytes(), std::uint8_t{0});
  }
  for (std::int64_t i = 0; i < count; ++i) {
    encode_token(layout, z + i * layout.num_coefficients(), steps, lane + i, tile);
  }
}

void decode_tile(const TileLayout& layout, const std::uint8_t* tile, const float* steps, float* z) {
  HWY_DYNAMIC_DISPATCH(decode)(layout, tile, steps, z);
}

}  // namespace kvc
#endif  // HWY_ONCE
