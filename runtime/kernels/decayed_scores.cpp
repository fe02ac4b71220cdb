#include "runtime/kernels/decayed_scores.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/decayed_scores.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/exp-inl.h"
#include "runtime/kernels/query_quads.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void update_scores(const DecayedScoresParams& params) { update_decayed_scores_reference(params); }

#else

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kScoredAtOnce = 64;

// sums[4 i] = exp(score - log_sum) of row i's lanes of all quads, `stride` numbers apart; log_sum of lanes without a
// head is infinite.
void add_probabilities(const float* scores, std::int64_t stride, const float* log_sum,
                       std::int64_t num_quads, std::int64_t count, float* sums) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_ALIGN float last[hn::MaxLanes(d)] = {};
  for (std::int64_t i = 0; i < count * kQuad; i += lanes) {
    auto sum = hn::Zero(d);
    for (std::int64_t quad = 0; quad < num_quads; ++quad) {
      const float* known = scores + quad * stride + i;
      if (i + lanes > count * kQuad) {  // behind it may be nothing
        std::copy(known, scores + quad * stride + count * kQuad, last);
        known = last;
      }
      const auto of_quad = hn::LoadDup128(d, log_sum + quad * kQuad);
      // Whatever lanes without a head hold, even what is not a number, becomes nothing.
      const auto exponent = hn::IfThenElse(hn::IsInf(of_quad), hn::Neg(of_quad),
                                           hn::Sub(hn::LoadU(d, known), of_quad));
      sum = hn::Add(sum, exp_below_zero(d, exponent));
    }
    const auto of_pairs = hn::Add(sum, hn::Reverse2(d, sum));
    hn::StoreU(hn::Add(of_pairs, hn::Shuffle1032(of_pairs)), d, sums + i);
  }
}

void update_scores(const DecayedScoresParams& params) {
  const QuadHeads heads(params.num_heads, params.num_kv_heads);
  std::vector<float> log_sum(static_cast<std::size_t>(heads.num_scores(1)), INFINITY);
  for (std::int64_t head = 0; head < params.num_heads; ++head) {
    log_sum[static_cast<std::size_t>(heads.place(head, 0, kQuad))] = params.log_sum[head];
  }
  HWY_ALIGN float sums[kScoredAtOnce * kQuad];
  for (std::int64_t row = 0; row < params.num_rows;) {
    const std::int64_t in_block = row % params.block_rows;
    const std::int64_t count =
        std::min({kScoredAtOnce, params.block_rows - in_block, params.num_rows - row});
    float* to = params.to[row / params.block_rows] + in_block * params.num_kv_heads;
    for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      const std::int64_t quad = kv_head * heads.per_kv_head;
      add_probabilities(params.scores.numbers + quad * params.scores.stride + row * kQuad,
                        params.scores.stride, log_sum.data() + quad * kQuad, heads.per_kv_head,
                        count, sums);
      for (std::int64_t i = 0; i < count; ++i) {
        float& score = to[i * params.num_kv_heads + kv_head];
        score = params.decay * score + sums[i * kQuad];
      }
    }
    row += count;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR
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
