#include "runtime/kernels/decayed_scores.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/decayed_scores.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A KV head's query heads at a time; the lanes behind them are zero.
void update_scores(const DecayedScoresParams& params) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  HWY_ALIGN float exponents[hn::MaxLanes(d)] = {};
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    const float* scores = params.scores + row * params.num_heads;
    float* to = params.to + row * params.num_kv_heads;
    for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      const std::int64_t begin = kv_head * heads_per_kv, end = begin + heads_per_kv;
      auto sum = hn::Zero(d);
      for (std::int64_t head = begin; head < end; head += lanes) {
        const std::int64_t count = std::min(lanes, end - head);
        for (std::int64_t lane = 0; lane < count; ++lane) {
          exponents[lane] = scores[head + lane] - params.log_sum[head + lane];
        }
        const auto known = hn::FirstN(d, static_cast<std::size_t>(count));
        sum = hn::Add(sum, hn::IfThenElseZero(known, hn::Exp(d, hn::Load(d, exponents))));
      }
      to[kv_head] = params.decay * to[kv_head] + hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(update_scores);

void update_decayed_scores(const DecayedScoresParams& params) {
  HWY_DYNAMIC_DISPATCH(update_scores)(params);
}

}  // namespace kvc
#endif  // HWY_ONCE
