// The text that a candidate is judged on, as token rows.
#pragma once

#include <cstdint>

#include "core/checkpoint.h"
#include "core/token_set.h"
#include "model/config.h"
#include "validate/validate.h"

namespace kvc {

// Error when the checkpoints' tokenizers differ, when the text gives no row of at least four
// tokens, or when one of its files was a calibration text of the candidate.
TokenSet load_evaluation_text(const ValidateOptions& options, const Checkpoint& candidate,
                              const ModelConfig& config);

// Does the candidate's config.json say which texts it was calibrated on? A folded one does not.
bool records_calibration(const Checkpoint& candidate);

}  // namespace kvc
