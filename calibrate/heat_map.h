// A square matrix as an SVG picture.
#pragma once

#include <span>
#include <string>

namespace kvc {

// `values` [size, size], row 0 on top; blank where not a number. Colours run from `low` (dark) to `high`.
std::string heat_map(const std::string& title, std::span<const double> values, int size, double low,
                     double high);

}  // namespace kvc
