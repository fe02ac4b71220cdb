// Options of a validation: their ranges, and their record in a report.
#pragma once

#include "core/json.h"
#include "validate/validate.h"

namespace kvc {

void check_options(const ValidateOptions& options);  // UsageError
Json options_json(const ValidateOptions& options);

}  // namespace kvc
