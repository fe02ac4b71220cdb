// Scores of queries with rotated coefficients of keys: products of the codes with queries that were multiplied
// with the coefficients' weights.
#if defined(KVC_RUNTIME_KERNELS_ROTATED_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_ROTATED_KEYS_INL_H_
#undef KVC_RUNTIME_KERNELS_ROTATED_KEYS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_ROTATED_KEYS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/tile_products-inl.h"
#include "runtime/kernels/turned_means-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// Scaled queries of heads head .. head + count - 1 times the weights of their KV head. [count, weights]
inline std::vector<float> weighted_queries(const DecodeAttentionParams& params,
                                           const CodedKeyRows& rows, std::int64_t head,
                                           std::int64_t count) {
  std::vector<float> weighted;
  weighted.reserve(static_cast<std::size_t>(count) * rows.rotated().size());
  for (std::int64_t i = head; i < head + count; ++i) {
    const float* query = params.query + i * params.head_dim;
    for (const CodedKeyRows::RotatedWeight& of : rows.rotated()) {
      weighted.push_back(params.scale * query[of.channel] * of.weight);
    }
  }
  return weighted;
}

// Keys of one KV head and tile, in turn, which stay codes.
class RotatedKeys {
 public:
  RotatedKeys(const DecodeAttentionParams& params, const CodedSegment& segment)
      : rows_(segment.rows), means_(params, segment) {
    const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
    for (std::int64_t head = 0; head < params.num_heads; ++head) {
      const CodedKeyRows& rows = rows_[head / heads_per_kv];
      queries_.push_back(weighted_queries(params, rows, head, 1));
      float offset = 0;
      for (std::int64_t d = 0; d < params.head_dim; ++d) {
        offset += params.scale * params.query[head * params.head_dim + d] * rows.offset(d);
      }
      offsets_.push_back(offset);
    }
  }

  // All of these as TileKeys'.
  void set_positions(const std::int32_t* positions) { means_.set_positions(positions); }
  void rebuild(std::int64_t kv_head, const std::uint8_t* codes, const float* gains) {
    of_head_ = rows_ + kv_head;
    codes_ = codes;
    gains_ = gains;
  }
  void score(std::int64_t head, std::int64_t count, std::int64_t position, std::int64_t stride,
             float* scores) {
    with_heads(count,
               [&](auto heads) HWY_ATTR { score_heads<heads()>(head, position, stride, scores); });
  }

 private:
  static constexpr std::int64_t kVecs = 2;  // of tokens together

  template <int kHeads>
  void score_heads(std::int64_t head, std::int64_t position, std::int64_t stride, float* scores) {
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const std::vector<CodedKeyRows::RotatedWeight>& weights = of_head_->rotated();
    const float* queries[kHeads];
    for (std::int64_t i = 0; i < kHeads; ++i) {
      queries[i] = queries_[static_cast<std::size_t>(head + i)].data();
    }
    for (std::int64_t token = 0; token < kTileTokens; token += kVecs * lanes) {
      TokenVec sums[kHeads][kVecs];
      for (std::int64_t i = 0; i < kHeads; ++i) {
        sums[i][0] = sums[i][1] = hn::Set(d, offsets_[static_cast<std::size_t>(head + i)]);
      }
      for (std::size_t c = 0; c < weights.size(); ++c) {
        const std::uint8_t* row = codes_ + weights[c].coefficient * TileCodes::kRowStride + token;
        const TokenVec first = float_codes(row), second = float_codes(row + lanes);
        for (std::int64_t i = 0; i < kHeads; ++i) {
          const TokenVec query = hn::Set(d, queries[i][c]);
          sums[i][0] = hn::MulAdd(query, first, sums[i][0]);
          sums[i][1] = hn::MulAdd(query, second, sums[i][1]);
        }
      }
      for (std::int64_t vec = 0; vec < kVecs; ++vec) {
        const TokenVec gains = hn::LoadU(d, gains_ + token + vec * lanes);
        for (std::int64_t i = 0; i < kHeads; ++i) {
          hn::StoreU(hn::Mul(sums[i][vec], gains), d, scores + i * stride + token + vec * lanes);
        }
      }
    }
    means_.add<kHeads>(head, position, stride, scores);
  }

  const CodedKeyRows* rows_;
  TurnedMeans means_;
  std::vector<std::vector<float>> queries_;  // [num_heads], weighted
  std::vector<float> offsets_;               // [num_heads]
  const CodedKeyRows* of_head_ = nullptr;
  const std::uint8_t* codes_ = nullptr;
  const float* gains_ = nullptr;
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
