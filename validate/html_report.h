// The validation report as one self-contained page: no scripts, nothing loaded from elsewhere.
#pragma once

#include <string>

#include "validate/validate.h"

namespace kvc {

std::string html_report(const ValidationReport& report);

}  // namespace kvc
