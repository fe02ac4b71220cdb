// kvconvert --export mla: a checkpoint in DeepSeek-V2's layout, for engines with kernels for latent attention. The
// layout costs quality, so the result is written only if its quality is close enough to that of a coded cache of equal bytes.
#pragma once

#include "convert/pipeline.h"

namespace kvc {

// Converts, measures the export and a coded conversion of the same kept_ratio on the same text, and prints one line with
// both. Error (ExitCode::kThresholdMissed) with the numbers, and no output, where the export's KL divergence exceeds
// the coded cache's by more than options.mla_allowed. UsageError for options that do not go with it.
void run_mla_pipeline(PipelineOptions options);

}  // namespace kvc
