// Running softmaxes of query heads and their sums of codes.
#if defined(KVC_RUNTIME_KERNELS_CODED_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_CODED_SOFTMAX_INL_H_
#undef KVC_RUNTIME_KERNELS_CODED_SOFTMAX_INL_H_
#else
#define KVC_RUNTIME_KERNELS_CODED_SOFTMAX_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/exp-inl.h"
#include "runtime/kernels/tile_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// Tokens first .. last - 1 of a tile.
struct TokenRange {
  std::int64_t first, last;
};

class CodeSums {
 public:
  CodeSums(std::int64_t num_heads, std::int64_t num_coefficients)
      : num_coefficients_(num_coefficients),
        max_(static_cast<std::size_t>(num_heads), -INFINITY),
        sum_(max_.size(), 0),
        gain_sum_(max_.size(), 0),
        codes_(static_cast<std::size_t>(num_heads * num_coefficients) * hn::Lanes(Tokens()), 0) {}

  // Heads head .. head + count - 1, one tile. scores [count, kTileTokens]; are overwritten.
  void add(std::int64_t head, std::int64_t count, const TileCodes& codes, std::int64_t,
           const TokenRange& seen, float softcap, float* scores) {
    for (std::int64_t i = 0; i < count; ++i) {
      exponentiate(head + i, codes.gains(0), seen, softcap, scores + i * kTileTokens);
    }
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t c = 0; c < num_coefficients_; ++c) {
      for (std::int64_t i = 0; i < count; ++i) {
        float* to = codes_of(head + i) + c * lanes;
        TokenVec sum = hn::LoadU(d, to);
        for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
          sum = hn::MulAdd(codes.floats(c, token), hn::LoadU(d, scores + i * kTileTokens + token),
                           sum);
        }
        hn::StoreU(sum, d, to);
      }
    }
  }

  void write(const AttentionPartial& partial) const {
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::size_t head = 0; head < max_.size(); ++head) {
      partial.max[head] = max_[head];
      partial.sum[head] = sum_[head];
      const auto index = static_cast<std::int64_t>(head);
      float* output = partial.output + index * (num_coefficients_ + 1);
      for (std::int64_t c = 0; c < num_coefficients_; ++c) {
        output[c] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, codes_of(index) + c * lanes)));
      }
      output[num_coefficients_] = gain_sum_[head];
    }
  }

 private:
  float* codes_of(std::int64_t head) {
    return codes_.data() + static_cast<std::size_t>(head * num_coefficients_) * hn::Lanes(Tokens());
  }
  const float* codes_of(std::int64_t head) const {
    return codes_.data() + static_cast<std::size_t>(head * num_coefficients_) * hn::Lanes(Tokens());
  }

  // Scores become exp(score - max) * gain, 0 for unseen tokens.
  void exponentiate(std::int64_t head, const float* gains, const TokenRange& seen, float softcap,
                    float* scores) {
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    if (softcap != 0) {
      for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
        hn::StoreU(cap_score(d, hn::LoadU(d, scores + token), softcap), d, scores + token);
      }
    }
    std::fill(scores, scores + seen.first, -INFINITY);
    std::fill(scores + seen.last, scores + kTileTokens, -INFINITY);
    TokenVec largest = hn::LoadU(d, scores);
    for (std::int64_t token = lanes; token < kTileTokens; token += lanes) {
      largest = hn::Max(largest, hn::LoadU(d, scores + token));
    }
    float& max = max_[static_cast<std::size_t>(head)];
    const float before = max;
    max = std::max(before, hn::GetLane(hn::MaxOfLanes(d, largest)));
    if (max > before) {
      rescale(head, std::exp(before - max));
    }
    TokenVec sum = hn::Zero(d), with_gain = hn::Zero(d);
    for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
      const TokenVec e = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + token), hn::Set(d, max)));
      const TokenVec weight = hn::Mul(e, hn::LoadU(d, gains + token));
      sum = hn::Add(sum, e);
      with_gain = hn::Add(with_gain, weight);
      hn::StoreU(weight, d, scores + token);
    }
    sum_[static_cast<std::size_t>(head)] += hn::GetLane(hn::SumOfLanes(d, sum));
    gain_sum_[static_cast<std::size_t>(head)] += hn::GetLane(hn::SumOfLanes(d, with_gain));
  }

  void rescale(std::int64_t head, float factor) {
    sum_[static_cast<std::size_t>(head)] *= factor;
    gain_sum_[static_cast<std::size_t>(head)] *= factor;
    const Tokens d;
    float* codes = codes_of(head);
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t c = 0; c < num_coefficients_; ++c) {
      hn::StoreU(hn::Mul(hn::LoadU(d, codes + c * lanes), hn::Set(d, factor)), d,
                 codes + c * lanes);
    }
  }

  std::int64_t num_coefficients_;
  std::vector<float> max_, sum_, gain_sum_;  // [num_heads]
  std::vector<float> codes_;                 // [num_heads, num_coefficients, lanes]
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
