// Scores of queries with rotated coefficients of keys as dot products of bytes.
#if defined(KVC_RUNTIME_KERNELS_VNNI_ROTATED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_VNNI_ROTATED_INL_H_
#undef KVC_RUNTIME_KERNELS_VNNI_ROTATED_INL_H_
#else
#define KVC_RUNTIME_KERNELS_VNNI_ROTATED_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/rotated_keys-inl.h"
#include "runtime/kernels/turned_means-inl.h"
#include "runtime/kernels/vnni_quads-inl.h"

#if KVC_HAS_VNNI_CODES
KVC_BEFORE_VNNI();
namespace kvc::HWY_NAMESPACE {

// Keys of one KV head and tile, in turn, which stay codes. Up to kHeadsTogether weighted queries at a time are
// rows of integers.
class VnniRotatedKeys {
 public:
  VnniRotatedKeys(const DecodeAttentionParams& params, const CodedSegment& segment)
      : heads_per_kv_(params.num_heads / params.num_kv_heads), means_(params, segment) {
    for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      const CodedKeyRows& rows = segment.rows[kv_head];
      std::vector<std::int32_t> coefficients;
      for (const CodedKeyRows::RotatedWeight& of : rows.rotated()) {
        coefficients.push_back(of.coefficient);
      }
      for (std::int64_t i = 0; i < heads_per_kv_; i += kHeadsTogether) {
        const std::int64_t count = std::min(kHeadsTogether, heads_per_kv_ - i);
        const std::vector<float> weighted =
            weighted_queries(params, rows, kv_head * heads_per_kv_ + i, count);
        queries_.emplace_back(segment.keys.layout, coefficients, weighted.data(), count,
                              kQueryDistortion);
      }
    }
  }

  // All of these as TileKeys'.
  void set_positions(const std::int32_t* positions) { means_.set_positions(positions); }
  void rebuild(std::int64_t, const std::uint8_t* codes, const float* gains) {
    codes_ = codes;
    gains_ = gains;
  }
  void score(std::int64_t head, std::int64_t count, std::int64_t position, std::int64_t stride,
             float* scores) {
    with_heads(count, [&](auto heads) { score_heads<heads()>(head, position, stride, scores); });
  }

 private:
  // Queries are exact beside the codes: several of them at a time read decoded keys.
  static constexpr double kQueryDistortion = 1e-9;

  template <int kHeads>
  void score_heads(std::int64_t head, std::int64_t position, std::int64_t stride, float* scores) {
    const std::int64_t parts = (heads_per_kv_ + kHeadsTogether - 1) / kHeadsTogether;
    const std::int64_t part = head / heads_per_kv_ * parts + head % heads_per_kv_ / kHeadsTogether;
    const IntegerRows& query = queries_[static_cast<std::size_t>(part)];
    RowSums<kHeads> sums;
    if (query.has_run()) {
      multiply<kHeads, true>(query, sums);
    } else {
      multiply<kHeads, false>(query, sums);
    }
    for (std::int64_t i = 0; i < kHeads; ++i) {
      const __m512 scale = _mm512_set1_ps(query.scale(i)), offset = _mm512_set1_ps(query.offset(i));
      for (std::int64_t half = 0; half < 2; ++half) {
        const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums.of[i][half]), scale, offset);
        _mm512_storeu_ps(
            scores + i * stride + 16 * half,
            gains_ == nullptr ? sum : _mm512_mul_ps(sum, _mm512_loadu_ps(gains_ + 16 * half)));
      }
    }
    means_.add<kHeads>(head, position, stride, scores);
  }

  template <int kHeads, bool kRun>
  HWY_INLINE void multiply(const IntegerRows& query, RowSums<kHeads>& sums) const {
    constexpr std::int64_t kStep = IntegerRows::kRows * IntegerRows::kQuad;
    RowSums<kHeads> low;
    sums.clear();
    low.clear();
    const std::int8_t *high_weights = query.high(0), *low_weights = query.low(0);
    const std::int64_t wide = query.num_wide() / IntegerRows::kQuad;
    for (std::int64_t quad = 0; quad < wide; ++quad) {
      const CodeQuad codes = read_quad<kRun>(query, quad, codes_);
      sums.add(codes, high_weights + quad * kStep);
      low.add(codes, low_weights + quad * kStep);
    }
    for (std::int64_t quad = wide; quad < query.num_quads(); ++quad) {
      sums.add(read_quad<kRun>(query, quad, codes_), high_weights + quad * kStep);
    }
    sums.widen();
    for (int i = 0; i < kHeads; ++i) {
      for (int half = 0; half < 2; ++half) {
        sums.of[i][half] = _mm512_add_epi32(sums.of[i][half], low.of[i][half]);
      }
    }
  }

  std::int64_t heads_per_kv_;
  TurnedMeans means_;
  std::vector<IntegerRows> queries_;  // [num_kv_heads, parts of its heads]
  const std::uint8_t* codes_ = nullptr;
  const float* gains_ = nullptr;
};

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // KVC_HAS_VNNI_CODES

#endif
