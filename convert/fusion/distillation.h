// Distillation of fused layers' factors, and optionally of their weights: AdamW on KL(p_original || p_converted)
// over calibration sequences, until the KL of held-out ones no longer falls.
#pragma once

#include "convert/conversion_job.h"
#include "convert/fusion/fused_forward.h"

namespace kvc {

// Replaces the factors (float32) by those with the least held-out divergence; factors that RoPE ties stay tied.
// Follows settings.distill; an eighth of the sequences is held out. With job.state the state is stored there,
// and a later call resumes from it and gives the same bytes. Returns {"steps", "best_step",
// "held_out_kl_before", "held_out_kl_after", "held_out_sequences", "tuned_tensors"}; nats, mean over tokens.
// With settings.distill.tune_layers the weights that belong to these factors go to job.factors, below
// kTunedPrefix (core/conversion_file.h).
Json distill(const ConversionJob& job, FusedFactorMap& factors);

}  // namespace kvc
