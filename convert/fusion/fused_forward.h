// A model in float32, and the same model with fused layers, differentiable in their factors and
// trained weights: distillation compares the two.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "model/decoder.h"
#include "model/fused_kv.h"
#include "model/weights.h"

namespace kvc {

// Weights of fused layers that distillation trains beside their factors: W_q, W_o and norms.
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

// Factors by layer.
using FusedFactorMap = std::map<int, FusedWeights>;

class FusedForward {
 public:
  // Loads all weights. `plan` must outlive this.
  FusedForward(const Checkpoint& checkpoint, const ModelConfig& config, const KvPlan& plan);

  // Gives fused layers trainable copies of their weights; the original's stay. In the order of layers.
  std::vector<TunedWeight> tune_layers();

  // Mean over tokens of KL(p_original || p_fused) of one sequence's next-token distributions in one
  // exact pass. Has gradients if the factors do and grad mode is on.
  at::Tensor divergence(const std::vector<std::int64_t>& ids, const FusedFactorMap& factors) const;

 private:
  at::Tensor logits(at::Tensor hidden_states, int first_layer, const TokenBatch& batch,
                    Attention& attention, const std::map<int, LayerWeights>& tuned) const;

  const ModelConfig& config_;
  const KvPlan& plan_;
  RopeTables rope_;
  ModelWeights weights_;
  std::vector<LayerWeights> layers_;
  std::map<int, LayerWeights> tuned_;  // replaces layers_ in fused layers
};

}  // namespace kvc
