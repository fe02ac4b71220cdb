// Products of queries with means of keys, which turn with the tokens' positions.
#if defined(KVC_RUNTIME_KERNELS_TURNED_MEANS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_TURNED_MEANS_INL_H_
#undef KVC_RUNTIME_KERNELS_TURNED_MEANS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_TURNED_MEANS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/tile_products-inl.h"
#include "runtime/kernels/tile_rope-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// A pair with the query (a, b) and the mean (x, y) adds cos (a x + b y) + sin (b x - a y) to a score, the
// angle being the position's. The two products are turned back to a tile's first position as a query is.
class TurnedMeans {
 public:
  TurnedMeans(const DecodeAttentionParams& params, const CodedSegment& segment)
      : rope_(params.raw_keys.rope),
        pairs_(mean_pairs(params, segment)),
        padded_((static_cast<std::int64_t>(pairs_.size()) + kPadding - 1) / kPadding * kPadding),
        turns_(rope_, pairs_),
        products_(static_cast<std::size_t>(params.num_heads * 2 * padded_), 0.0f),
        turned_(static_cast<std::size_t>(kHeadsTogether * 2 * padded_), 0.0f),
        angles_(static_cast<std::size_t>(2 * padded_), 0.0f) {
    const float scale = rope_.num_pairs == 0 ? 1 : params.scale / rope_.cos[0];
    for (std::int64_t head = 0; head < params.num_heads; ++head) {
      const float* query = params.query + head * params.head_dim;
      const CodedKeyRows& rows = segment.rows[head / (params.num_heads / params.num_kv_heads)];
      float* first = products_.data() + 2 * head * padded_;
      for (const std::int32_t pair : pairs_) {
        const std::int64_t i = first_of(rope_, pair), j = second_of(rope_, pair);
        first[padded_] = scale * (query[j] * rows.mean(i) - query[i] * rows.mean(j));
        *first++ = scale * (query[i] * rows.mean(i) + query[j] * rows.mean(j));
      }
      float sum = 0;
      for (std::int64_t d = 2 * rope_.num_pairs; d < params.head_dim; ++d) {
        sum += query[d] * rows.mean(d);
      }
      unturned_.push_back(params.scale * sum);
    }
  }

  // As TileKeys'.
  void set_positions(const std::int32_t* positions) { turns_.set(positions); }

  // To scores of heads head .. head + count - 1, at most kHeads, as TileKeys' score.
  template <int kHeads>
  void add(std::int64_t head, std::int64_t count, std::int64_t position, std::int64_t stride,
           float* scores) {
    turn_back_to(position, head, count);
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
      TokenVec sums[kHeads];
      for (int i = 0; i < kHeads; ++i) {
        const bool has = i < count;
        sums[i] = has ? hn::Add(hn::LoadU(d, scores + i * stride + token),
                                hn::Set(d, unturned_[static_cast<std::size_t>(head + i)]))
                      : hn::Zero(d);
      }
      const float* product = turned_.data();
      for (std::size_t pair = 0; pair < pairs_.size(); ++pair, ++product) {
        const auto index = static_cast<std::int64_t>(pair);
        const TokenVec cos = hn::LoadU(d, turns_.cos(index) + token);
        const TokenVec sin = hn::LoadU(d, turns_.sin(index) + token);
        for (int i = 0; i < kHeads; ++i) {
          sums[i] = hn::MulAdd(hn::Set(d, product[2 * i * padded_]), cos, sums[i]);
          sums[i] = hn::MulAdd(hn::Set(d, product[(2 * i + 1) * padded_]), sin, sums[i]);
        }
      }
      for (std::int64_t i = 0; i < count; ++i) {
        hn::StoreU(sums[i], d, scores + i * stride + token);
      }
    }
  }

 private:
  static constexpr std::int64_t kPadding = 16;

  // Those with a mean in any KV head.
  static std::vector<std::int32_t> mean_pairs(const DecodeAttentionParams& params,
                                              const CodedSegment& segment) {
    const RopeAngles& rope = params.raw_keys.rope;
    std::vector<std::int32_t> pairs;
    for (std::int32_t pair = 0; pair < rope.num_pairs; ++pair) {
      bool any = false;
      for (std::int64_t head = 0; head < params.num_kv_heads; ++head) {
        any |= segment.rows[head].mean(first_of(rope, pair)) != 0 ||
               segment.rows[head].mean(second_of(rope, pair)) != 0;
      }
      if (any) {
        pairs.push_back(pair);
      }
    }
    return pairs;
  }

  void turn_back_to(std::int64_t position, std::int64_t head, std::int64_t count) {
    float *cos = angles_.data(), *sin = cos + padded_;
    for (const std::int32_t pair : pairs_) {
      *cos++ = rope_.cos[position * rope_.num_pairs + pair];
      *sin++ = rope_.sin[position * rope_.num_pairs + pair];
    }
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t i = 0; i < count; ++i) {
      const float* from = products_.data() + 2 * (head + i) * padded_;
      float* to = turned_.data() + 2 * i * padded_;
      for (std::int64_t pair = 0; pair < padded_; pair += lanes) {
        turn_back(d, 1.0f, hn::LoadU(d, angles_.data() + pair),
                  hn::LoadU(d, angles_.data() + padded_ + pair), from + pair, from + padded_ + pair,
                  to + pair, to + padded_ + pair);
      }
    }
  }

  RopeAngles rope_;
  std::vector<std::int32_t> pairs_;
  std::int64_t padded_;  // number of pairs
  TileTurns turns_;
  std::vector<float> unturned_;  // [num_heads], of channels without RoPE
  std::vector<float> products_;  // [num_heads, 2, padded]
  std::vector<float> turned_;    // [kHeadsTogether, 2, padded]
  std::vector<float> angles_;    // [2, padded]
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
