// Scores of queries with keys of which every rotary pair has a transform of its own: keys stay in registers.
#if defined(KVC_RUNTIME_KERNELS_PAIR_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_PAIR_KEYS_INL_H_
#undef KVC_RUNTIME_KERNELS_PAIR_KEYS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_PAIR_KEYS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/tile_products-inl.h"
#include "runtime/kernels/tile_rope-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// Keys of one KV head and tile, in turn, which stay codes. Codes: TileCodes or the like.
template <class Codes>
class PairKeys {
 public:
  PairKeys(const DecodeAttentionParams& params, const CodedSegment& segment)
      : params_(params),
        rope_(params.raw_keys.rope),
        turns_(rope_),
        query_(static_cast<std::size_t>(kHeadsTogether * params.head_dim), 0.0f) {
    for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      transforms_.push_back(transforms(segment.rows[kv_head]));
    }
  }

  // All of these as TileKeys'.
  void set_positions(const std::int32_t* positions) { turns_.set(positions); }
  void rebuild(std::int64_t kv_head, const std::uint8_t* codes, const float* gains) {
    of_head_ = &transforms_[static_cast<std::size_t>(kv_head)];
    codes_ = codes;
    gains_ = gains;
  }
  void score(std::int64_t head, std::int64_t count, std::int64_t position, std::int64_t stride,
             float* scores) {
    for (std::int64_t i = 0; i < count; ++i) {
      turn_query_back(params_, rope_, head + i, position, query_.data() + i * params_.head_dim);
    }
    switch (count) {
      case 1:
        return score_heads<1>(1, stride, scores);
      case 2:
        return score_heads<2>(2, stride, scores);
      default:
        return score_heads<kHeadsTogether>(count, stride, scores);
    }
  }

 private:
  static constexpr std::int64_t kVecs = 2;  // of tokens together

  struct Transform {
    CodedKeyRows::Pair pair;
    std::int64_t turn;  // the rotary pair; -1: none
    float offset[2], mean[2], both[2];
  };

  // Those of rotary pairs come first.
  std::vector<Transform> transforms(const CodedKeyRows& rows) const {
    std::vector<Transform> all;
    for (const CodedKeyRows::Pair& pair : rows.pairs()) {
      const std::int64_t first = pair.channels[0];
      Transform of{.pair = pair,
                   .turn = first >= 2 * rope_.num_pairs ? -1
                           : rope_.interleaved          ? first / 2
                                                        : first};
      bool any = pair.count > 0;
      for (int i = 0; i < 2; ++i) {
        const std::int64_t d = pair.channels[i];
        of.mean[i] = rows.mean(d);
        of.offset[i] = rows.offset(d);
        of.both[i] = of.offset[i] + of.mean[i];
        any |= of.mean[i] != 0;
      }
      if (any) {
        all.push_back(of);
      }
    }
    std::stable_partition(all.begin(), all.end(), [](const Transform& of) { return of.turn >= 0; });
    return all;
  }

  template <int kHeads>
  void score_heads(std::int64_t count, std::int64_t stride, float* scores) const {
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t token = 0; token < kTileTokens; token += kVecs * lanes) {
      TokenVec sums[kHeads][kVecs];
      for (auto& of_head : sums) {
        of_head[0] = of_head[1] = hn::Zero(d);
      }
      if (gains_ == nullptr) {
        add_pairs<kHeads, false>(token, sums);
      } else {
        add_pairs<kHeads, true>(token, sums);
      }
      for (std::int64_t i = 0; i < count; ++i) {
        hn::StoreU(sums[i][0], d, scores + i * stride + token);
        hn::StoreU(sums[i][1], d, scores + i * stride + token + lanes);
      }
    }
  }

  template <int kHeads, bool kGains>
  HWY_INLINE void add_pairs(std::int64_t token, TokenVec (&sums)[kHeads][kVecs]) const {
    const Transform* of = of_head_->data();
    const Transform* end = of + of_head_->size();
    for (; of < end && of->turn >= 0; ++of) {
      add_pair<kHeads, kGains, true>(*of, token, sums);
    }
    for (; of < end; ++of) {
      add_pair<kHeads, kGains, false>(*of, token, sums);
    }
  }

  template <int kHeads, bool kGains, bool kTurn>
  HWY_INLINE void add_pair(const Transform& of, std::int64_t token,
                           TokenVec (&sums)[kHeads][kVecs]) const {
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const float* query = query_.data();
    TokenVec queries[kHeads][2];
    for (int i = 0; i < kHeads; ++i, query += params_.head_dim) {
      queries[i][0] = hn::Set(d, query[of.pair.channels[0]]);
      queries[i][1] = hn::Set(d, query[of.pair.channels[1]]);
    }
    const std::uint8_t* codes[2];
    for (int c = 0; c < 2; ++c) {
      codes[c] = codes_ + of.pair.coefficients[c] * Codes::kRowStride + token;
    }
    const float* cos = kTurn ? turns_.cos(of.turn) + token : nullptr;
    const float* sin = kTurn ? turns_.sin(of.turn) + token : nullptr;
    for (int vec = 0; vec < kVecs; ++vec) {
      const std::int64_t at = vec * lanes;
      const TokenVec u = float_codes(codes[0] + at), v = float_codes(codes[1] + at);
      TokenVec key[2];
      for (int i = 0; i < 2; ++i) {
        const float* weights = of.pair.weights[i];
        const TokenVec start = hn::Set(d, kGains ? of.offset[i] : of.both[i]);
        key[i] = hn::MulAdd(hn::Set(d, weights[0]), u, start);
        key[i] = hn::MulAdd(hn::Set(d, weights[1]), v, key[i]);
        if constexpr (kGains) {
          key[i] = hn::MulAdd(key[i], hn::LoadU(d, gains_ + token + at), hn::Set(d, of.mean[i]));
        }
      }
      if constexpr (kTurn) {
        const TokenVec a = key[0], b = key[1], c = hn::LoadU(d, cos + at);
        const TokenVec s = hn::LoadU(d, sin + at);
        key[0] = hn::NegMulAdd(b, s, hn::Mul(a, c));
        key[1] = hn::MulAdd(a, s, hn::Mul(b, c));
      }
      for (int i = 0; i < kHeads; ++i) {
        sums[i][vec] = hn::MulAdd(queries[i][0], key[0], sums[i][vec]);
        sums[i][vec] = hn::MulAdd(queries[i][1], key[1], sums[i][vec]);
      }
    }
  }

  const DecodeAttentionParams& params_;
  RopeAngles rope_;
  TileTurns turns_;
  std::vector<std::vector<Transform>> transforms_;  // [num_kv_heads]
  std::vector<float> query_;                        // [kHeadsTogether, head_dim]
  const std::vector<Transform>* of_head_ = nullptr;
  const std::uint8_t* codes_ = nullptr;
  const float* gains_ = nullptr;
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
