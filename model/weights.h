// A checkpoint's tensors as ATen tensors, and the weights of one decoder layer under their HF
// names.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "model/config.h"
#include "model/linear.h"
#include "model/tensor_names.h"

namespace kvc {

at::ScalarType scalar_type(Dtype dtype,
                           const std::string& tensor);  // Error for types we cannot compute in
Dtype dtype_of(at::ScalarType type);
at::ScalarType parse_scalar_type(const std::string& name);  // "float32", "bfloat16", "float16"

// Copies a tensor out of the mapping, cast to `dtype`. The shape is checked here, once.
at::Tensor load_tensor(const Checkpoint& checkpoint, const std::string& name,
                       const std::vector<std::int64_t>& shape, at::ScalarType dtype);

// Projections may share one fused matrix, of which each one's weight is a block of rows: one
// product is faster than several. load_layer leaves them apart, so that gradients can be taken for
// each.
struct LayerWeights {
  at::Tensor input_layernorm;             // [hidden_size]
  Linear q_proj, k_proj, v_proj, o_proj;  // k_proj/v_proj weights undefined where a plan replaced
                                          // them; their biases are kept
  at::Tensor q_norm, k_norm;              // [head_dim], or undefined
  at::Tensor post_attention_layernorm;    // [hidden_size]
  Linear gate_proj, up_proj, down_proj;
  Linear qkv_proj;      // rows q | k | v, or undefined
  Linear gate_up_proj;  // rows gate | up, or undefined
};

struct ModelWeights {
  at::Tensor embed_tokens;  // [vocab_size, hidden_size]
  at::Tensor norm;          // [hidden_size]
  at::Tensor lm_head;       // [vocab_size, hidden_size]; the embedding itself when tied
};

// `with_kv_weights` false: k_proj and v_proj weights are not read (a plan replaced them).
LayerWeights load_layer(const Checkpoint& checkpoint, const ModelConfig& config, int layer,
                        at::ScalarType dtype, bool with_kv_weights = true);
// Moves q/k/v and gate/up into fused matrices; no weight is held twice. Without k_proj's weight
// only gate/up.
void fuse_projections(LayerWeights& weights);
ModelWeights load_model_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                                at::ScalarType dtype);
// Rows `ids` [num_tokens] of the embedding, cast to `dtype`, without reading the others.
at::Tensor load_embeddings(const Checkpoint& checkpoint, const ModelConfig& config,
                           const at::Tensor& ids, at::ScalarType dtype);
// The type the checkpoint stores its weights in (that of the embedding).
at::ScalarType storage_dtype(const Checkpoint& checkpoint);
// Error listing every tensor that the config needs and the checkpoint lacks, or that it holds and
// no part of the architecture uses. Reads headers only. `replaced` names tensors that may be
// absent.
void check_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                   const std::vector<std::string>& replaced = {});

}  // namespace kvc
