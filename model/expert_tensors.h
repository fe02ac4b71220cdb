// The tensors of a layer's experts in a checkpoint: one per expert and projection, or all experts' in
// one.
#pragma once

#include <ATen/ATen.h>

#include "core/checkpoint.h"
#include "model/config.h"
#include "model/moe.h"

namespace kvc {

// `config` with all experts of a layer in one tensor (MoeConfig::stacked): does the checkpoint hold such?
bool stores_stacked_experts(const Checkpoint& checkpoint, const ModelConfig& config);
MoeWeights load_experts(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
                        at::ScalarType dtype, WeightType type = WeightType::kFloat);

}  // namespace kvc
