// Charts of a sweep's page, as SVG; empty where there is nothing to draw.
#pragma once

#include <string>

#include "core/json.h"

namespace kvc {

std::string quality_chart(const Json& sweep);  // divergence by kept_ratio
std::string position_chart(
    const Json& sweep);  // of the best candidates, by position in the sequence
std::string layer_chart(
    const Json& sweep);  // bits per number that the best candidates keep, by layer

}  // namespace kvc
