// Keys of a tile of coded tokens, and scores of queries with them. Tokens are the lanes.
#if defined(KVC_RUNTIME_KERNELS_REBUILD_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_REBUILD_KEYS_INL_H_
#undef KVC_RUNTIME_KERNELS_REBUILD_KEYS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_REBUILD_KEYS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/kernels/coded_keys.h"
#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/tile_products-inl.h"
#include "runtime/kernels/tile_rope-inl.h"
#include "runtime/kernels/unpack_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t kHeadsTogether = 4;  // query heads of one KV head

// Keys of one KV head, in turn.
class TileKeys {
 public:
  explicit TileKeys(const DecodeAttentionParams& params)
      : params_(params),
        rope_(params.raw_keys.rope),
        turns_(rope_),
        keys_(static_cast<std::size_t>((params.head_dim + CodedKeyRows::kChannels) * kTileTokens)),
        query_(static_cast<std::size_t>(kHeadsTogether * params.head_dim)) {}

  // Positions of the following tiles, if their tokens are not consecutive. [kTileTokens]
  void set_positions(const std::int32_t* positions) { turns_.set(positions); }

  void rebuild(const CodedKeyRows& rows, const TileCodes& codes) {
    for (std::int64_t channel = 0; channel < params_.head_dim; channel += CodedKeyRows::kChannels) {
      float* to = keys_.data() + channel * kTileTokens;
      multiply_codes(rows, channel, codes, to);
      const std::int64_t count = std::min(CodedKeyRows::kChannels, params_.head_dim - channel);
      for (std::int64_t d = channel; d < channel + count; ++d, to += kTileTokens) {
        finish(rows, d, codes.gains(), to);
      }
    }
    for (std::int64_t pair = 0; pair < rope_.num_pairs; ++pair) {
      rotate(pair);
    }
  }

  // Scores of query heads head .. head + count - 1 with the keys rebuilt last, whose first is at
  // `position` (0 if positions were set). scores: [count, kTileTokens]
  void score(std::int64_t head, std::int64_t count, std::int64_t position, float* scores) {
    std::fill(query_.begin(), query_.end(), 0.0f);
    for (std::int64_t i = 0; i < count; ++i) {
      turn_query_back(params_, rope_, head + i, position, query_.data() + i * params_.head_dim);
    }
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
      TokenVec sums[kHeadsTogether] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      for (std::int64_t channel = 0; channel < params_.head_dim; ++channel) {
        const TokenVec key = hn::LoadU(d, keys_.data() + channel * kTileTokens + token);
        for (std::int64_t i = 0; i < kHeadsTogether; ++i) {
          const float q = query_[static_cast<std::size_t>(i * params_.head_dim + channel)];
          sums[i] = hn::MulAdd(hn::Set(d, q), key, sums[i]);
        }
      }
      for (std::int64_t i = 0; i < count; ++i) {
        hn::StoreU(sums[i], d, scores + i * kTileTokens + token);
      }
    }
  }

 private:
  static void finish(const CodedKeyRows& rows, std::int64_t channel, const float* gains,
                     float* key) {
    const Tokens d;
    const auto scale = hn::Set(d, rows.scale(channel)), offset = hn::Set(d, rows.offset(channel));
    const auto mean = hn::Set(d, rows.mean(channel));
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
      const auto sum = hn::MulAdd(hn::LoadU(d, key + token), scale, offset);
      hn::StoreU(hn::MulAdd(sum, hn::LoadU(d, gains + token), mean), d, key + token);
    }
  }

  void rotate(std::int64_t pair) {
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const float *cos = turns_.cos(pair), *sin = turns_.sin(pair);
    float* first = keys_.data() + first_of(rope_, pair) * kTileTokens;
    float* second = keys_.data() + second_of(rope_, pair) * kTileTokens;
    for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
      const auto a = hn::LoadU(d, first + token), b = hn::LoadU(d, second + token);
      const auto c = hn::LoadU(d, cos + token), s = hn::LoadU(d, sin + token);
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, first + token);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, second + token);
    }
  }

  const DecodeAttentionParams& params_;
  RopeAngles rope_;
  TileTurns turns_;
  std::vector<float> keys_;   // [head_dim, kTileTokens]
  std::vector<float> query_;  // [kHeadsTogether, head_dim]
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
