// The tensors of a layer's experts in a checkpoint: one per expert and projection, or all experts' in
// one.
#pragma once

#include <ATen/ATen.h>

#include "core/checkpoint.h"
#include "model/config.h"
#include "model/moe.h"

namespace kvc {

// Does the checkpoint store all experts of a layer in one tensor (MoeConfig::stacked)?
bool stores_stacked_experts(const Checkpoint& checkpoint, const ModelConfig& config);
MoeWeights load_experts(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
                        at::ScalarType dtype, WeightType type = WeightType::kFloat);

}  // namespace kvc
