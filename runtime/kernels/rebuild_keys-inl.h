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

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/tile_products-inl.h"
#include "runtime/kernels/tile_rope-inl.h"
#include "runtime/kernels/unpack_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// Keys of one KV head and tile, in turn.
class TileKeys {
 public:
  TileKeys(const DecodeAttentionParams& params, const CodedSegment& segment)
      : params_(params),
        rows_(segment.rows),
        rope_(params.raw_keys.rope),
        turns_(rope_),
        keys_(static_cast<std::size_t>(params.head_dim * kTileTokens)),
        query_(static_cast<std::size_t>(kHeadsTogether * params.head_dim)) {
    for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      const std::vector<IntegerRows>& of_head = rows_[kv_head].bases();
      bases_.emplace_back(of_head.begin(), of_head.end());
    }
  }

  // Positions of the following tiles, if their tokens are not consecutive. [kTileTokens]
  void set_positions(const std::int32_t* positions) { turns_.set(positions); }

  // codes: of a tile, a row of kRowStride bytes for each coefficient. gains [kTileTokens]
  void rebuild(std::int64_t kv_head, const std::uint8_t* codes, const float* gains) {
    const CodedKeyRows& rows = rows_[kv_head];
    float products[IntegerRows::kRows * kTileTokens];
    for (std::size_t i = 0; i < rows.bases().size(); ++i) {
      const IntegerRows& basis = rows.bases()[i];
      const PairedRows& integers = bases_[static_cast<std::size_t>(kv_head)][i];
      integers.spread(codes, pairs_);
      const std::int32_t* channels = rows.channels(static_cast<std::int64_t>(i));
      for (std::int64_t row = 0; row < basis.num_rows(); ++row) {
        const std::int64_t in_block = row % IntegerRows::kRows;
        if (in_block == 0) {
          integers.multiply(row, pairs_, products);
        }
        finish(rows, channels[row], basis.scale(row), products + in_block * kTileTokens, gains);
      }
    }
    for (std::int64_t pair = 0; pair < rope_.num_pairs; ++pair) {
      rotate(pair);
    }
  }

  // Scores of query heads head .. head + count - 1 with the keys rebuilt last, whose first is at
  // `position` (0 if positions were set). scores: `count` rows, `stride` apart
  void score(std::int64_t head, std::int64_t count, std::int64_t position, std::int64_t stride,
             float* scores) {
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
        hn::StoreU(sums[i], d, scores + i * stride + token);
      }
    }
  }

 private:
  void finish(const CodedKeyRows& rows, std::int64_t channel, float unit, const float* products,
              const float* gains) {
    const Tokens d;
    const auto scale = hn::Set(d, unit), offset = hn::Set(d, rows.offset(channel));
    const auto mean = hn::Set(d, rows.mean(channel));
    float* key = keys_.data() + channel * kTileTokens;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
      const auto sum = hn::MulAdd(hn::LoadU(d, products + token), scale, offset);
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
  const CodedKeyRows* rows_;
  RopeAngles rope_;
  TileTurns turns_;
  std::vector<std::vector<PairedRows>> bases_;  // [num_kv_heads, bases]
  AlignedVector<std::int16_t> pairs_;           // of a tile's codes
  std::vector<float> keys_;                     // [head_dim, kTileTokens]
  std::vector<float> query_;                    // [kHeadsTogether, head_dim]
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
