// Means with standard errors clustered by sequence, and percentiles.
#pragma once

#include <cstdint>
#include <vector>

#include "validate/validate.h"

namespace kvc {

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

}  // namespace kvc
