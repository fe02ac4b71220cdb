// What a report says of its own numbers: thresholds that they miss, and numbers that too little text stands behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "validate/validate.h"

namespace kvc {

// Half of the 95 % interval: the standard error times the 0.975 quantile of Student's t, beyond ten degrees of freedom by its
// expansion. Not a number where there is no error. `count`: of sequences or samples.
double half_interval(const Estimate& estimate, std::int64_t count);

// Thresholds of the options and of their tasks that the report misses, one sentence each.
std::vector<std::string> missed_thresholds(const ValidateOptions& options,
                                           const ValidationReport& report);

// One sentence with the way out if the longest row's last token was not scored through a smaller cache, for each threshold
// that lies in the 95 % interval of what was measured (Student's t over sequences), and for a KL divergence whose interval
// reaches half of it.
std::vector<std::string> precision_warnings(const ValidateOptions& options,
                                            const ValidationReport& report);

}  // namespace kvc
