// Weights of fused layers that distillation trains beside their factors: W_q, W_o and norms.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "model/weights.h"

namespace kvc {

// One tensor of the checkpoint, or some rows of it.
struct TunedWeight {
  std::string tensor;          // its name there
  std::int64_t first_row = 0;  // of that tensor
  double offset = 0;           // what a layer adds to the stored numbers (norms of 1 + w)
  at::Tensor weight{};  // as the layer uses it, float32; set in the layer that it was taken from
};

// Replaces the layer's weights by copies with gradients.
std::vector<TunedWeight> tune_weights(const ModelConfig& config, int layer, LayerWeights& weights);

// The whole tensor with the tuned rows in it, as the checkpoint stores it but in float32.
at::Tensor stored_tensor(const Checkpoint& checkpoint, const TunedWeight& tuned);

}  // namespace kvc
