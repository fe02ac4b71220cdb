// Two models' logits at the same positions, compared position by position, and what that comes to over all positions of
// one setting.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "validate/validate.h"

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

// One quantity summed over the scored positions of one sequence.
struct SequenceSum {
  double sum = 0;
  std::int64_t count = 0;
};

// mean m = sum_s sum_s / N over all N positions; variance S/(S-1) * sum_s (sum_s - m count_s)^2 /
// N^2.
Estimate clustered_mean(const std::vector<SequenceSum>& sequences);
// The root of a mean of squares; its error by the delta method.
Estimate root_of(const Estimate& mean_square);
// Linear interpolation between order statistics; `sorted` ascending and not empty, fraction in [0,
// 1].
double percentile(const std::vector<float>& sorted, double fraction);

// Gathers the scored positions of one setting, sequence by sequence.
class ComparisonAccumulator {
 public:
  // The scores of one sequence; the first one is that of the token at `first_position`.
  void add(std::int64_t first_position, const PositionScores& scores);
  Comparison finalize() const;

 private:
  std::vector<SequenceSum> reference_nll_, candidate_nll_, log_ratio_, kl_, same_top_, delta_p_,
      delta_p_square_;                    // [num_sequences]
  std::vector<float> divergences_;        // every position's, for percentiles
  std::vector<SequenceSum> by_position_;  // [seq_len], over sequences
};

}  // namespace kvc
