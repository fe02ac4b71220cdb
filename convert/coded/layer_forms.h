// --form auto on a model: measures what forms its layers may have.
#pragma once

#include "convert/methods/methods.h"

namespace kvc {

// Gives every layer a form (convert/coded/form_choice.h) by the job's statistics, and the plan the blocks that follow. Error if
// the calibration has too few tokens for a block.
void choose_forms(ConversionJob& job);

}  // namespace kvc
