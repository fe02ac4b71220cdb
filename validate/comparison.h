// Gathers the scored positions of one setting, sequence by sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "validate/position_scores.h"
#include "validate/statistics.h"
#include "validate/validate.h"

namespace kvc {

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
