// A checkpoint's tensors as ATen tensors, and the weights of one decoder layer under their HF
// names.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "model/config.h"
#include "model/linear.h"
#include "model/mla.h"
#include "model/moe.h"
#include "model/norm.h"
#include "model/tensor_names.h"

namespace kvc {

at::ScalarType scalar_type(
    Dtype dtype,
    const std::string& tensor);  // Error for dtypes that cannot be computed in
Dtype dtype_of(at::ScalarType type);
at::ScalarType parse_scalar_type(const std::string& name);  // "float32", "bfloat16", "float16"

// True if rounding to float16 leaves at most a millionth of squared error in every row and column of a matrix.
bool half_holds(const at::Tensor& matrix);
// float16 if so, else float32.
at::Tensor to_half_or_float(const at::Tensor& matrix);

// Copies a tensor out of the mapping, cast to `dtype`. The shape is checked here, once.
at::Tensor load_tensor(const Checkpoint& checkpoint, const std::string& name,
                       const std::vector<std::int64_t>& shape, at::ScalarType dtype);
// Some rows of a tensor, without reading the others. [num_rows, columns]
at::Tensor load_rows(const Checkpoint& checkpoint, const ProjectionRows& rows, std::int64_t columns,
                     at::ScalarType dtype);

// The same two as the weight of a projection, stored as `type`.
Linear load_weight(const Checkpoint& checkpoint, const std::string& name,
                   const std::vector<std::int64_t>& shape, at::ScalarType dtype, WeightType type);
Linear load_weight_rows(const Checkpoint& checkpoint, const ProjectionRows& rows,
                        std::int64_t columns, at::ScalarType dtype, WeightType type);

// Projections may share one fused matrix, in which each weight is a block of rows: one product is
// faster than several. load_layer leaves them separate, so each can have a gradient. Norms that an
// architecture lacks are undefined and change nothing.
struct LayerWeights {
  Norm input_norm;                        // before attention
  Linear q_proj, k_proj, v_proj, o_proj;  // k_proj/v_proj weights undefined if a plan replaced
                                          // them; their biases are kept
  Norm q_norm, k_norm;                    // [head_dim], or [q_dim] and [kv_dim]
  Norm attention_output_norm;             // on attention's output
  Norm mlp_norm;                          // before the MLP
  Linear gate_proj, up_proj, down_proj;   // gate_proj undefined if the MLP is not gated
  Norm mlp_output_norm;                   // on the MLP's output
  Linear qkv_proj;                        // rows q | k | v, or undefined
  Linear gate_up_proj;                    // rows gate | up, or undefined
  MlaWeights mla;                         // instead of q, k and v, or undefined
  MoeWeights experts;                     // instead of gate, up and down, or undefined
};

struct ModelWeights {
  at::Tensor embed_tokens;  // [vocab_size, hidden_size]; undefined when tied and int8
  Norm norm;                // [hidden_size]
  Linear lm_head;           // [vocab_size, hidden_size]; the embedding itself when tied
};

// `with_kv_weights` false: k_proj and v_proj weights are not read (a plan replaced them). `type` is the
// dtype of matrices that multiply activations, except those of routers and of MLA's latents.
LayerWeights load_layer(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
                        at::ScalarType dtype, bool with_kv_weights = true,
                        WeightType type = WeightType::kFloat);
// True if the checkpoint stores all experts of a layer in one tensor (MoeConfig::stacked).
bool stores_stacked_experts(const Checkpoint& checkpoint, const ModelConfig& config);
// A layer's experts, from one tensor per expert and projection or from stacked ones.
MoeWeights load_experts(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
                        at::ScalarType dtype, WeightType type = WeightType::kFloat);

// The same weights on another device.
LayerWeights to_device(LayerWeights weights, at::Device device);
ModelWeights to_device(ModelWeights weights, at::Device device);
// Moves q/k/v and gate/up into fused matrices; no weight is stored twice. Without k_proj's weight
// only gate/up.
void fuse_projections(LayerWeights& weights);
ModelWeights load_model_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                                at::ScalarType dtype, WeightType type = WeightType::kFloat);
// Input of the first layer, [num_tokens, hidden_size]: rows `ids` [num_tokens] of the embedding,
// scaled by the config's factor.
at::Tensor embed(const ModelConfig& config, const at::Tensor& embed_tokens, const at::Tensor& ids);
// The same, wherever the embedding is.
at::Tensor embed(const ModelConfig& config, const ModelWeights& weights, const at::Tensor& ids,
                 at::ScalarType dtype);
// The same in `dtype`, without reading other rows of the embedding.
at::Tensor load_embeddings(const Checkpoint& checkpoint, const ModelConfig& config,
                           const at::Tensor& ids, at::ScalarType dtype);
// Dtype of the checkpoint's weights (that of the embedding).
at::ScalarType storage_dtype(const Checkpoint& checkpoint, const ModelConfig& config);
// Error listing every tensor that the config requires and the checkpoint lacks, or that it has and
// the architecture does not use. Reads headers only. `replaced` names tensors that may be absent.
void check_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                   const std::vector<std::string>& replaced = {});

}  // namespace kvc
