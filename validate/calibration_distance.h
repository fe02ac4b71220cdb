// How far the text that a candidate is judged on is from the text that it was calibrated on, as the original
// reads them: the difference of the mean NLL per token. A basis follows its text, so that what was measured says
// little of a text of another kind. Texts of one kind have nearly one NLL, the converse need not hold.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/engine.h"
#include "validate/validate.h"

namespace kvc {

// Of a few rows of a tokens.h5, evenly spread.
Estimate calibration_nll(Engine& reference, const std::filesystem::path& tokens);

// Nats by which the NLLs differ; 0 where the calibration text was not read.
double calibration_distance(const ValidationReport& report);
// One sentence with the numbers and the way out where the texts are more than a nat apart; otherwise empty.
std::string calibration_warning(const ValidationReport& report);

}  // namespace kvc
