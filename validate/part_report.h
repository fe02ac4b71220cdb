// What single parts of a conversion cost: for a file, a terminal and a page.
#pragma once

#include <string>

#include "core/json.h"
#include "validate/validate.h"

namespace kvc {

// [{"first_layer", "num_layers", "kl_divergence"}]; null if parts were not measured.
Json parts_json(const ValidationReport& report);
// A table, and a chart; empty if parts were not measured.
std::string parts_text(const ValidationReport& report);
std::string parts_html(const ValidationReport& report);

}  // namespace kvc
