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
#include <array>
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

// Places of byte `byte` of [kTileTokens] integers, twice.
constexpr std::array<std::uint8_t, 2 * kTileTokens> bytes_of_integers(std::size_t byte) {
  std::array<std::uint8_t, 2 * kTileTokens> places{};
  for (std::size_t i = 0; i < places.size(); ++i) {
    places[i] = static_cast<std::uint8_t>(i % kTileTokens * sizeof(std::int32_t) + byte);
  }
  return places;
}

// Tiles of values that are read together. Their codes stay packed.
class VnniTiles {
 public:
  static constexpr std::int64_t kTiles = 8;

  explicit VnniTiles(const TileLayout& layout) : layout_(layout) {}

  void read(const std::uint8_t* from, std::int64_t tile) {
    packed_[tile] = from;
    if (layout_.gain) {
      unpack_gains(layout_, from, gains_ + tile * kTileTokens);
    }
  }

  const std::uint8_t* packed(std::int64_t tile) const { return packed_[tile]; }
  const float* gains() const { return layout_.gain ? gains_ : nullptr; }  // null: ones

 private:
  TileLayout layout_;
  const std::uint8_t* packed_[kTiles] = {};
  float gains_[kTiles * kTileTokens] = {};
};

// Weights of a group's tokens are integers of 16 bits in units of the largest: their high and low bytes
// multiply the codes, and sums of a group are exact.
class VnniSums {
 public:
  using Values = VnniTiles;

  VnniSums(std::int64_t num_heads, const TileLayout& layout)
      : layout_(layout),
        stride_(num_quads(layout) * kSums),
        max_(static_cast<std::size_t>(num_heads), -INFINITY),
        sum_(max_.size(), 0),
        gain_sum_(max_.size(), 0),
        codes_(max_.size() * static_cast<std::size_t>(stride_), 0) {}

  // Heads head .. head + count - 1, at most kHeadsTogether. scores [count, kTokens]; are overwritten.
  void add(std::int64_t head, std::int64_t count, const VnniTiles& values, std::int64_t tiles,
           const TokenRange& seen, float softcap, float* scores) {
    for (std::int64_t i = 0; i < count; ++i) {
      float* of_head = scores + i * kTokens;
      if (softcap != 0) {
        cap(softcap, tiles * kTileTokens, of_head);
      }
      std::fill(of_head, of_head + seen.first, -INFINITY);
      std::fill(of_head + seen.last, of_head + tiles * kTileTokens, -INFINITY);
      const float largest = exponentiate(head + i, tiles * kTileTokens, values.gains(), of_head);
      gain_sum_[static_cast<std::size_t>(head + i)] += split_weights(i, tiles, largest, of_head);
    }
    with_heads(count, [&](auto heads) { add_codes<heads()>(head, values, tiles); });
  }

  void write(const AttentionPartial& partial) const {
    for (std::size_t head = 0; head < max_.size(); ++head) {
      partial.max[head] = max_[head];
      partial.sum[head] = sum_[head];
      const auto index = static_cast<std::int64_t>(head);
      float* output = partial.output + index * (layout_.num_coefficients() + 1);
      const float* from = codes_.data() + index * stride_;
      for (int bits = kWidestCode; bits >= 1; --bits) {
        const std::int64_t count = layout_.coefficients[bits];
        for (std::int64_t c = 0; c < count; ++c) {
          const float* four = from + c / kQuad * kSums + c % 2 * 8 + c % kQuad / 2;
          *output++ = (four[0] + four[2]) + (four[4] + four[6]);
        }
        from += quads_of(count) * kSums;
      }
      *output = gain_sum_[head];
    }
  }

 private:
  static constexpr std::int64_t kTokens = VnniTiles::kTiles * kTileTokens;
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
  float split_weights(std::int64_t i, std::int64_t tiles, float largest, const float* weights) {
    alignas(64) static constexpr std::array<std::uint8_t, kPlaneBytes> kHigh = bytes_of_integers(1);
    alignas(64) static constexpr std::array<std::uint8_t, kPlaneBytes> kLow = bytes_of_integers(0);
    const bool any = largest > kLeast;
    units_[i] = any ? largest / kLargest : 0;
    __m512i sum = _mm512_setzero_si512();
    const __m512 inverse = _mm512_set1_ps(any ? kLargest / largest : 0);
    for (std::int64_t tile = 0; tile < tiles; ++tile, weights += kTileTokens) {
      // Plus a half of 256: the byte above is the nearest, and what it leaves is the low byte less 128.
      __m512i rounded[2];
      for (int half = 0; half < 2; ++half) {
        const __m512i integer =
            _mm512_cvtps_epi32(_mm512_mul_ps(inverse, _mm512_loadu_ps(weights + 16 * half)));
        sum = _mm512_add_epi32(sum, integer);
        rounded[half] = _mm512_add_epi32(integer, _mm512_set1_epi32(128));
      }
      const auto bytes = [&](const std::array<std::uint8_t, kPlaneBytes>& places) HWY_ATTR {
        return _mm512_permutex2var_epi8(rounded[0], _mm512_load_si512(places.data()), rounded[1]);
      };
      _mm512_store_si512(weights_[tile][i][0], bytes(kHigh));
      _mm512_store_si512(weights_[tile][i][1],
                         _mm512_xor_si512(bytes(kLow), _mm512_set1_epi8(-128)));
    }
    return units_[i] * static_cast<float>(_mm512_reduce_add_epi32(sum));
  }

  // The group's codes times the weights of kHeads heads.
  template <int kHeads>
  void add_codes(std::int64_t head, const VnniTiles& values, std::int64_t tiles) {
    std::int64_t from = 0;
    float* to = codes_.data() + head * stride_;
    add_width<kHeads, 8>(values, tiles, from, to);
    add_width<kHeads, 7>(values, tiles, from, to);
    add_width<kHeads, 6>(values, tiles, from, to);
    add_width<kHeads, 5>(values, tiles, from, to);
    add_width<kHeads, 4>(values, tiles, from, to);
    add_width<kHeads, 3>(values, tiles, from, to);
    add_width<kHeads, 2>(values, tiles, from, to);
    add_width<kHeads, 1>(values, tiles, from, to);
  }
  // Coefficients of kBits bits, which begin at byte `from` of a tile; `from` and `to` move behind them.
  template <int kHeads, int kBits>
  void add_width(const VnniTiles& values, std::int64_t tiles, std::int64_t& from, float*& to) {
    constexpr std::int64_t kBytes = kBits * kTileTokens / 8;
    const std::int64_t count = layout_.coefficients[kBits];
    for (std::int64_t c = 0; c < count; c += kQuad, to += kSums) {
      if (count - c > 2) {
        add_rows<kHeads, kBits, 2>(values, tiles, from + c * kBytes, to);
      } else {
        add_rows<kHeads, kBits, 1>(values, tiles, from + c * kBytes, to);
      }
    }
    from += count * kBytes;
  }
  // Coefficients of kRows vectors of codes, which begin at byte `from` of a tile. Codes stay in registers.
  template <int kHeads, int kBits, int kRows>
  HWY_INLINE void add_rows(const VnniTiles& values, std::int64_t tiles, std::int64_t from,
                           float* to) {
    constexpr std::int64_t kBytes = 2 * kBits * kTileTokens / 8;
    __m512i sums[kHeads][2][2];  // of high and low bytes, for two rows of codes each
    for_constants<4 * kHeads>(
        [&](auto i) HWY_ATTR { sums[i() / 4][i() / 2 % 2][i() % 2] = _mm512_setzero_si512(); });
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const std::uint8_t* packed = values.packed(tile) + from;
      const std::uint8_t* end = values.packed(tile) + layout_.bytes();
      __m512i codes[kRows];
      for_constants<kRows>([&](auto row) HWY_ATTR {
        codes[row()] = unpack_two<kBits>(load_two<kBits>(packed + row() * kBytes, end));
      });
      for_constants<2 * kHeads>([&](auto i) HWY_ATTR {
        constexpr int kHead = i() / 2, kPlane = i() % 2;
        const __m512i weights = _mm512_load_si512(weights_[tile][kHead][kPlane]);
        for_constants<kRows>([&](auto row) HWY_ATTR {
          sums[kHead][kPlane][row()] =
              add_products(sums[kHead][kPlane][row()], codes[row()], weights);
        });
      });
    }
    for_constants<kHeads>([&](auto i) HWY_ATTR {
      float* of_head = to + i() * stride_;
      __m512i rows[2];  // eight sums of each of two coefficients
      for_constants<2>([&](auto row) HWY_ATTR {
        rows[row()] =
            _mm512_add_epi32(_mm512_slli_epi32(sums[i()][0][row()], 8), sums[i()][1][row()]);
      });
      const __m512i sum = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[0], rows[1]),
                                           _mm512_unpackhi_epi32(rows[0], rows[1]));
      _mm512_storeu_ps(of_head,
                       _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(units_[i()]),
                                       _mm512_loadu_ps(of_head)));
    });
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

  // Quads have coefficients of one width.
  static std::int64_t quads_of(std::int64_t count) { return (count + kQuad - 1) / kQuad; }
  static std::int64_t num_quads(const TileLayout& layout) {
    std::int64_t quads = 0;
    for (const std::int64_t count : layout.coefficients) {
      quads += quads_of(count);
    }
    return quads;
  }

  TileLayout layout_;
  std::int64_t stride_;
  std::vector<float> max_, sum_, gain_sum_;  // [num_heads]
  AlignedVector<float> codes_;               // [num_heads, quads, kSums]
  float units_[kHeadsTogether] = {};
  // For each tile and head, high bytes and low ones, twice.
  alignas(64) std::int8_t weights_[VnniTiles::kTiles][kHeadsTogether][2][kPlaneBytes] = {};
};

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVC_HAS_VNNI_CODES

#endif
