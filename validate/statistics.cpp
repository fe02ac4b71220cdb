#include "validate/statistics.h"

#include <algorithm>
#include <cmath>

namespace kvc {

Estimate clustered_mean(const std::vector<SequenceSum>& sequences) {
  double sum = 0;
  std::int64_t count = 0;
  for (const SequenceSum& sequence : sequences) {
    sum += sequence.sum;
    count += sequence.count;
  }
  Estimate estimate;
  estimate.mean = sum / static_cast<double>(count);
  const auto clusters = static_cast<double>(sequences.size());
  if (sequences.size() < 2) {
    return estimate;
  }
  double squares = 0;
  for (const SequenceSum& sequence : sequences) {
    squares += std::pow(sequence.sum - estimate.mean * static_cast<double>(sequence.count), 2);
  }
  estimate.standard_error =
      std::sqrt(clusters / (clusters - 1) * squares) / static_cast<double>(count);
  return estimate;
}

Estimate root_of(const Estimate& mean_square) {
  const double root = std::sqrt(mean_square.mean);
  return {root, root > 0 ? mean_square.standard_error / (2 * root) : mean_square.standard_error};
}

double percentile(const std::vector<float>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return (1 - weight) * static_cast<double>(sorted[below]) +
         weight * static_cast<double>(sorted[above]);
}

}  // namespace kvc
