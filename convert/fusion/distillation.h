// Distillation of fused layers' factors, and of their weights if asked for: AdamW on KL(p_original || p_converted)
// over calibration sequences, until the KL of those held out no longer falls; and the file that it goes on from.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "convert/fusion/fused_forward.h"
#include "convert/fusion/fusion_plan.h"
#include "convert/methods/methods.h"

namespace kvc {

// AdamW (Loshchilov and Hutter) over a few tensors, without weight decay: it would pull factors and weights
// to zero, away from their fit.
struct AdamW {
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8;

  std::vector<at::Tensor> first, second;  // moments of the gradients, like the parameters

  static AdamW of(const std::vector<at::Tensor>& parameters);
  // Moves the parameters in place, each at its rate; `step` counts from 1.
  void update(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
              const std::vector<double>& rates, std::int64_t step);
};

// Half a cosine from `highest` at step 0 to 0 at `steps`.
double cosine_rate(double highest, std::int64_t step, std::int64_t steps);

struct DistillationState {
  std::int64_t step = 0, best_step = 0, evaluations_since_best = 0;
  double first_kl = 0, best_kl = 0;
  std::vector<at::Tensor> parameters, best;  // float32
  AdamW optimizer;
};

// Writes the file anew; it is complete at any time. `id` names what the state belongs to.
void save_state(const std::filesystem::path& path, const std::string& id,
                const DistillationState& state);
// False if there is no such file, or it has another id. `state` already has the parameters' shapes.
bool load_state(const std::filesystem::path& path, const std::string& id, DistillationState& state);

// Replaces the factors (float32) by those with the least held-out divergence; factors that RoPE ties stay tied.
// What FusionSettings::distill says; an eighth of the sequences is held out. With job.inputs.state the state is kept there
// and a later call goes on from it, to the same bytes. Returns {"steps", "best_step", "held_out_kl_before",
// "held_out_kl_after", "held_out_sequences", "tuned_tensors"}; nats, mean over tokens. Where
// layers are tuned (tune_layers), the weights that belong to these factors go to job.factors, below kTunedPrefix
// (core/conversion_file.h).
Json distill(ConversionJob& job, FusedFactorMap& factors);

}  // namespace kvc
