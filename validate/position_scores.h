// Two models' logits at the same positions, compared position by position.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace kvc {

// Natural logarithms, float64 log-softmax of the given logits. All [num_positions].
struct PositionScores {
  std::vector<double> kl_divergence;  // sum_v p_reference ln(p_reference / p_candidate)
  std::vector<double> reference_nll, candidate_nll;
  std::vector<double> delta_p;  // candidate minus reference probability of the target
  std::vector<bool> same_top;   // equal argmax
};

// Logits float32 [num_positions, vocab_size]; targets int64 [num_positions]. Error when a logit is
// not finite, naming the model.
PositionScores score_positions(const at::Tensor& reference_logits,
                               const at::Tensor& candidate_logits, const at::Tensor& targets);

}  // namespace kvc
