// The charts of the validation report.
#pragma once

#include <string>

#include "validate/validate.h"

namespace kvc {

// Share of positions by their KL divergence, on a logarithmic scale.
std::string histogram_chart(const Comparison& comparison);
// Mean KL divergence along the sequence.
std::string position_chart(const Comparison& comparison);

}  // namespace kvc
