// Running softmaxes of query heads and their sums of codes, as dot products of bytes.
#if defined(KVC_RUNTIME_KERNELS_VNNI_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_VNNI_SUMS_INL_H_
#undef KVC_RUNTIME_KERNELS_VNNI_SUMS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_VNNI_SUMS_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/coded_softmax-inl.h"
#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/exp-inl.h"
#include "runtime/kernels/vnni_codes-inl.h"

#if KVC_HAS_VNNI_CODES
KVC_BEFORE_VNNI();
namespace kvc::HWY_NAMESPACE {

// Weights of a group's tokens are integers of 16 bits in units of the largest: their high and low bytes
// multiply the codes, and sums of a group are exact.
class VnniSums {
 public:
  VnniSums(std::int64_t num_heads, std::int64_t num_coefficients)
      : num_coefficients_(num_coefficients),
        stride_((num_coefficients + kQuad - 1) / kQuad * kSums),
        max_(static_cast<std::size_t>(num_heads), -INFINITY),
        sum_(max_.size(), 0),
        gain_sum_(max_.size(), 0),
        codes_(max_.size() * static_cast<std::size_t>(stride_), 0) {}

  // Heads head .. head + count - 1, at most kHeadsTogether. scores [count, kGroupTokens]; are overwritten.
  void add(std::int64_t head, std::int64_t count, const VnniCodes& codes, std::int64_t tiles,
           const TokenRange& seen, float softcap, float* scores) {
    for (std::int64_t i = 0; i < count; ++i) {
      float* of_head = scores + i * kGroupTokens;
      if (softcap != 0) {
        cap(softcap, tiles * kTileTokens, of_head);
      }
      std::fill(of_head, of_head + seen.first, -INFINITY);
      std::fill(of_head + seen.last, of_head + tiles * kTileTokens, -INFINITY);
      const float largest = exponentiate(head + i, tiles * kTileTokens, codes.gains(0), of_head);
      gain_sum_[static_cast<std::size_t>(head + i)] +=
          split_weights(i, tiles * kTileTokens, largest, of_head);
    }
    switch (count) {
      case 1:
        return add_codes<1>(head, 1, codes, tiles);
      case 2:
        return add_codes<2>(head, 2, codes, tiles);
      default:
        return add_codes<kHeadsTogether>(head, count, codes, tiles);
    }
  }

  void write(const AttentionPartial& partial) const {
    for (std::size_t head = 0; head < max_.size(); ++head) {
      partial.max[head] = max_[head];
      partial.sum[head] = sum_[head];
      const auto index = static_cast<std::int64_t>(head);
      float* output = partial.output + index * (num_coefficients_ + 1);
      const float* from = codes_.data() + index * stride_;
      for (std::int64_t c = 0; c < num_coefficients_; ++c) {
        const float* four = from + c / kQuad * kSums + c % 2 * 8 + c % kQuad / 2;
        output[c] = (four[0] + four[2]) + (four[4] + four[6]);
      }
      output[num_coefficients_] = gain_sum_[head];
    }
  }

 private:
  static constexpr std::int64_t kQuad = IntegerRows::kQuad;
  // Sums of a quad: coefficients 0 and 2 in turn, in lanes 0 to 7, and then 1 and 3.
  static constexpr std::int64_t kSums = 16;
  static constexpr std::int64_t kPlaneBytes =
      2 * kTileTokens;  // a tile's weights for two rows of codes
  static constexpr float kLargest = 127 * 256 + 127;
  static constexpr float kLeast = 1e-30f;  // beside weights of one it is nothing

  static void cap(float softcap, std::int64_t count, float* scores) {
    const hn::FixedTag<float, 16> d;
    for (std::int64_t i = 0; i < count; i += 16) {
      hn::StoreU(cap_score(d, hn::LoadU(d, scores + i), softcap), d, scores + i);
    }
  }

  // Scores become exp(score - max) * gain; returns the largest.
  float exponentiate(std::int64_t head, std::int64_t count, const float* gains, float* scores) {
    const hn::FixedTag<float, 16> d;
    auto largest = hn::LoadU(d, scores);
    for (std::int64_t i = 16; i < count; i += 16) {
      largest = hn::Max(largest, hn::LoadU(d, scores + i));
    }
    const auto at = static_cast<std::size_t>(head);
    const float before = max_[at];
    max_[at] = std::max(before, hn::GetLane(hn::MaxOfLanes(d, largest)));
    if (max_[at] > before) {
      rescale(head, std::exp(before - max_[at]));
    }
    auto sum = hn::Zero(d);
    largest = hn::Zero(d);
    for (std::int64_t i = 0; i < count; i += 16) {
      const auto e = exp_below_zero(d, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, max_[at])));
      const auto weight = gains == nullptr ? e : hn::Mul(e, hn::LoadU(d, gains + i));
      sum = hn::Add(sum, e);
      largest = hn::Max(largest, weight);
      hn::StoreU(weight, d, scores + i);
    }
    sum_[at] += hn::GetLane(hn::SumOfLanes(d, sum));
    return hn::GetLane(hn::MaxOfLanes(d, largest));
  }

  // Converts the i-th head's weights of the group to integers; returns their sum.
  float split_weights(std::int64_t i, std::int64_t count, float largest, const float* weights) {
    const bool any = largest > kLeast;
    units_[i] = any ? largest / kLargest : 0;
    __m512i sum = _mm512_setzero_si512();
    const __m512 inverse = _mm512_set1_ps(any ? kLargest / largest : 0);
    for (std::int64_t token = 0; token < count; token += 16) {
      std::int8_t* to = weights_[token / kTileTokens][i][0] + token % kTileTokens;
      const __m512i integer =
          _mm512_cvtps_epi32(_mm512_mul_ps(inverse, _mm512_loadu_ps(weights + token)));
      sum = _mm512_add_epi32(sum, integer);
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(integer, _mm512_set1_epi32(128)), 8);
      store_twice(high, to);
      store_twice(_mm512_sub_epi32(integer, _mm512_slli_epi32(high, 8)), to + kPlaneBytes);
    }
    return units_[i] * static_cast<float>(_mm512_reduce_add_epi32(sum));
  }
  static void store_twice(__m512i integers, std::int8_t* to) {
    const __m128i bytes = _mm512_cvtepi32_epi8(integers);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kTileTokens), bytes);
  }

  // The group's codes times the weights of kHeads heads; `count` of them are used.
  template <int kHeads>
  void add_codes(std::int64_t head, std::int64_t count, const VnniCodes& codes,
                 std::int64_t tiles) {
    for (std::int64_t quad = 0; quad < codes.num_quads(); ++quad) {
      __m512i sums[kHeads][2][2];  // of high and low bytes, for two rows of codes each
      for (auto& of_head : sums) {
        for (auto& of_plane : of_head) {
          of_plane[0] = of_plane[1] = _mm512_setzero_si512();
        }
      }
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        const std::uint8_t* rows = codes.rows(tile) + quad * kQuad * kTileTokens;
        const __m512i first = _mm512_loadu_si512(rows), second = _mm512_loadu_si512(rows + 64);
        for (int i = 0; i < kHeads; ++i) {
          for (int plane = 0; plane < 2; ++plane) {
            const __m512i weights = _mm512_load_si512(weights_[tile][i][plane]);
            sums[i][plane][0] = _mm512_dpbusd_epi32(sums[i][plane][0], first, weights);
            sums[i][plane][1] = _mm512_dpbusd_epi32(sums[i][plane][1], second, weights);
          }
        }
      }
      for (std::int64_t i = 0; i < count; ++i) {
        float* to = codes_.data() + (head + i) * stride_ + quad * kSums;
        __m512i rows[2];  // eight sums of each of two coefficients
        for (int row = 0; row < 2; ++row) {
          rows[row] = _mm512_add_epi32(_mm512_slli_epi32(sums[i][0][row], 8), sums[i][1][row]);
        }
        const __m512i sum = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[0], rows[1]),
                                             _mm512_unpackhi_epi32(rows[0], rows[1]));
        _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(units_[i]),
                                             _mm512_loadu_ps(to)));
      }
    }
  }

  void rescale(std::int64_t head, float factor) {
    sum_[static_cast<std::size_t>(head)] *= factor;
    gain_sum_[static_cast<std::size_t>(head)] *= factor;
    float* codes = codes_.data() + head * stride_;
    for (std::int64_t i = 0; i < stride_; i += 16) {
      _mm512_storeu_ps(codes + i,
                       _mm512_mul_ps(_mm512_set1_ps(factor), _mm512_loadu_ps(codes + i)));
    }
  }

  std::int64_t num_coefficients_, stride_;
  std::vector<float> max_, sum_, gain_sum_;  // [num_heads]
  AlignedVector<float> codes_;               // [num_heads, quads, kSums]
  float units_[kHeadsTogether] = {};
  // For each tile and head, high bytes and low ones, twice.
  alignas(64) std::int8_t weights_[kGroupTiles][kHeadsTogether][2][kPlaneBytes] = {};
};

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVC_HAS_VNNI_CODES

#endif
