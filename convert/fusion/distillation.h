// Distillation of fused layers' factors, and of their weights if asked for: AdamW on KL(p_original || p_converted)
// over calibration sequences, until the KL of those held out no longer falls.
#pragma once

#include "convert/fusion/fused_forward.h"
#include "convert/fusion/fusion_settings.h"
#include "convert/methods/methods.h"

namespace kvc {

// Replaces the factors (float32) by those with the least held-out divergence; factors that RoPE ties stay tied.
// What FusionSettings::distill says; an eighth of the sequences is held out. With job.inputs.state the state is kept there
// and a later call goes on from it, to the same bytes. Returns {"steps", "best_step", "held_out_kl_before",
// "held_out_kl_after", "held_out_sequences", "tuned_tensors"}; nats, mean over tokens. With
// its tune_layers the weights that belong to these factors go to job.factors, below kTunedPrefix
// (core/conversion_file.h).
Json distill(ConversionJob& job, FusedFactorMap& factors);

}  // namespace kvc
