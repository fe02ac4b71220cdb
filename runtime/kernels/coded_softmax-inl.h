// Running softmaxes of query heads and their sums of codes.
#if defined(KVC_RUNTIME_KERNELS_CODED_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_CODED_SOFTMAX_INL_H_
#undef KVC_RUNTIME_KERNELS_CODED_SOFTMAX_INL_H_
#else
#define KVC_RUNTIME_KERNELS_CODED_SOFTMAX_INL_H_
#endif

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

// Tokens first .. last - 1 of a group of tiles.
struct TokenRange {
  std::int64_t first, last;
};

class CodeSums {
 public:
  using Values = TileCodes;

  CodeSums(std::int64_t num_heads, const TileLayout& layout)
      : num_coefficients_(layout.num_coefficients()),
        max_(static_cast<std::size_t>(num_heads), -INFINITY),
        sum_(max_.size(), 0),
        gain_sum_(max_.size(), 0),
        codes_(static_cast<std::size_t>(num_heads * num_coefficients_) * hn::Lanes(Tokens()), 0) {}

  // Heads head .. head + count - 1, at most kHeadsTogether. scores [count, kGroupTokens]; are overwritten.
  void add(std::int64_t head, std::int64_t count, const TileCodes& codes, std::int64_t tiles,
           const TokenRange& seen, float softcap, float* scores) {
    for (std::int64_t i = 0; i < count; ++i) {
      exponentiate(head + i, codes.gains(0), tiles * kTileTokens, seen, softcap,
                   scores + i * kGroupTokens);
    }
    with_heads(count, [&](auto heads) HWY_ATTR { add_codes<heads()>(head, codes, tiles, scores); });
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

  // weights [kHeads, kGroupTokens]
  template <int kHeads>
  void add_codes(std::int64_t head, const TileCodes& codes, std::int64_t tiles,
                 const float* weights) {
    const std::int64_t stride = num_coefficients_ * static_cast<std::int64_t>(hn::Lanes(Tokens()));
    float* to = codes_of(head);
    std::int64_t c = 0;
    for (; c + 2 <= num_coefficients_; c += 2) {
      add_rows<kHeads, 2>(c, codes, tiles, weights, stride, to);
    }
    if (c < num_coefficients_) {
      add_rows<kHeads, 1>(c, codes, tiles, weights, stride, to);
    }
  }
  // Coefficients c .. c + kRows - 1.
  template <int kHeads, int kRows>
  HWY_INLINE void add_rows(std::int64_t c, const TileCodes& codes, std::int64_t tiles,
                           const float* weights, std::int64_t stride, float* to) {
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    to += c * lanes;
    TokenVec sums[kHeads][kRows];
    for (int i = 0; i < kHeads; ++i) {
      for (int row = 0; row < kRows; ++row) {
        sums[i][row] = hn::LoadU(d, to + i * stride + row * lanes);
      }
    }
    const std::uint8_t* rows = codes.rows(0) + c * TileCodes::kRowStride;
    for (std::int64_t token = 0; token < tiles * kTileTokens; token += lanes) {
      TokenVec numbers[kRows];
      for (int row = 0; row < kRows; ++row) {
        numbers[row] = float_codes(rows + row * TileCodes::kRowStride + token);
      }
      for (int i = 0; i < kHeads; ++i) {
        const TokenVec weight = hn::LoadU(d, weights + i * kGroupTokens + token);
        for (int row = 0; row < kRows; ++row) {
          sums[i][row] = hn::MulAdd(numbers[row], weight, sums[i][row]);
        }
      }
    }
    for (int i = 0; i < kHeads; ++i) {
      for (int row = 0; row < kRows; ++row) {
        hn::StoreU(sums[i][row], d, to + i * stride + row * lanes);
      }
    }
  }

  // Scores of `count` tokens become exp(score - max) * gain, 0 for unseen tokens.
  void exponentiate(std::int64_t head, const float* gains, std::int64_t count,
                    const TokenRange& seen, float softcap, float* scores) {
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    if (softcap != 0) {
      for (std::int64_t token = 0; token < count; token += lanes) {
        hn::StoreU(cap_score(d, hn::LoadU(d, scores + token), softcap), d, scores + token);
      }
    }
    std::fill(scores, scores + seen.first, -INFINITY);
    std::fill(scores + seen.last, scores + count, -INFINITY);
    TokenVec largest = hn::LoadU(d, scores);
    for (std::int64_t token = lanes; token < count; token += lanes) {
      largest = hn::Max(largest, hn::LoadU(d, scores + token));
    }
    float& max = max_[static_cast<std::size_t>(head)];
    const float before = max;
    max = std::max(before, hn::GetLane(hn::MaxOfLanes(d, largest)));
    if (max > before) {
      rescale(head, std::exp(before - max));
    }
    TokenVec sum = hn::Zero(d), with_gain = hn::Zero(d);
    for (std::int64_t token = 0; token < count; token += lanes) {
      const TokenVec e = exp_below_zero(d, hn::Sub(hn::LoadU(d, scores + token), hn::Set(d, max)));
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
