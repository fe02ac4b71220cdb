#include "validate/position_scores.h"

#include <algorithm>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::int64_t kChunkElements = 1 << 21;  // logits compared at a time

void append(std::vector<double>& values, const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  const double* data = contiguous.const_data_ptr<double>();
  values.insert(values.end(), data, data + contiguous.numel());
}

at::Tensor log_probabilities(const at::Tensor& logits, const char* model) {
  at::Tensor result = at::log_softmax(logits.to(at::kDouble), 1);
  // One non-finite logit makes its whole row not finite, or is -inf itself.
  KVC_CHECK(result.isfinite().all().item<bool>(),
            "the {}'s logits are not finite; --dtype float32 has the widest range", model);
  return result;
}

void score_chunk(const at::Tensor& reference_logits, const at::Tensor& candidate_logits,
                 const at::Tensor& targets, PositionScores& scores) {
  const at::Tensor reference = log_probabilities(reference_logits, "reference");
  const at::Tensor candidate = log_probabilities(candidate_logits, "candidate");
  const at::Tensor column = targets.unsqueeze(1);
  const at::Tensor reference_target = reference.gather(1, column).squeeze(1);
  const at::Tensor candidate_target = candidate.gather(1, column).squeeze(1);
  // Rounding can leave a divergence of equal distributions a few 1e-17 below zero.
  append(scores.kl_divergence, (reference.exp() * (reference - candidate)).sum(1).clamp_min(0));
  append(scores.reference_nll, -reference_target);
  append(scores.candidate_nll, -candidate_target);
  append(scores.delta_p, candidate_target.exp() - reference_target.exp());
  const at::Tensor same = reference_logits.argmax(1).eq(candidate_logits.argmax(1)).contiguous();
  const bool* data = same.const_data_ptr<bool>();
  scores.same_top.insert(scores.same_top.end(), data, data + same.numel());
}

}  // namespace

PositionScores score_positions(const at::Tensor& reference_logits,
                               const at::Tensor& candidate_logits, const at::Tensor& targets) {
  const std::int64_t positions = reference_logits.size(0);
  const std::int64_t step = std::max<std::int64_t>(1, kChunkElements / reference_logits.size(1));
  PositionScores scores;
  for (std::int64_t begin = 0; begin < positions; begin += step) {
    const std::int64_t count = std::min(step, positions - begin);
    score_chunk(reference_logits.narrow(0, begin, count), candidate_logits.narrow(0, begin, count),
                targets.narrow(0, begin, count), scores);
  }
  return scores;
}

}  // namespace kvc
