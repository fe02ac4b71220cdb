// Scores of a prompt's query, and its softmax over blocks of keys.
#if defined(KVC_RUNTIME_KERNELS_PROMPT_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_PROMPT_SOFTMAX_INL_H_
#undef KVC_RUNTIME_KERNELS_PROMPT_SOFTMAX_INL_H_
#else
#define KVC_RUNTIME_KERNELS_PROMPT_SOFTMAX_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/kernels/exp-inl.h"
#include "runtime/kernels/float_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// A query's softmax so far.
struct RowSoftmax {
  float max = -INFINITY, sum = 0;
};

inline void cap_scores(float* scores, std::int64_t columns, float scale, float softcap) {
  const Numbers d;
  const NumberVec by = hn::Set(d, scale);
  for (std::int64_t i = 0; i < columns; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::StoreU(cap_score(d, hn::Mul(hn::LoadU(d, scores + i), by), softcap), d, scores + i);
  }
}

// Scores of lanes that are not first .. last - 1 become -infinity.
inline void hide_others(float* scores, std::int64_t columns, std::int64_t first,
                        std::int64_t last) {
  std::fill(scores, scores + first, -INFINITY);
  std::fill(scores + last, scores + columns, -INFINITY);
}

// Scores times a positive scale become weights, zeros of -infinity; the sums so far shrink by the factor that is returned.
inline float soften_row(float* scores, std::int64_t columns, float scale, RowSoftmax& softmax) {
  const Numbers d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  NumberVec largest = hn::LoadU(d, scores);
  for (std::int64_t i = lanes; i < columns; i += lanes) {
    largest = hn::Max(largest, hn::LoadU(d, scores + i));
  }
  const float max = std::max(softmax.max, scale * hn::GetLane(hn::MaxOfLanes(d, largest)));
  const float factor = softmax.max == max ? 1.0f : std::exp(softmax.max - max);
  const NumberVec shift = hn::Set(d, max), by = hn::Set(d, scale);
  NumberVec sum = hn::Zero(d);
  for (std::int64_t i = 0; i < columns; i += lanes) {
    const NumberVec weight = exp_below_zero(d, hn::MulSub(hn::LoadU(d, scores + i), by, shift));
    hn::StoreU(weight, d, scores + i);
    sum = hn::Add(sum, weight);
  }
  softmax = {max, softmax.sum * factor + hn::GetLane(hn::SumOfLanes(d, sum))};
  return factor;
}

inline void multiply_row(float* row, std::int64_t count, float factor) {
  const Numbers d;
  const NumberVec by = hn::Set(d, factor);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), by), d, row + i);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVC_RUNTIME_KERNELS_PROMPT_SOFTMAX_INL_H_
