// One attention layer in DeepSeek-V2's layout (arXiv 2502.07864). Position-free keys and values of all heads share one
// latent, the principal directions of their covariance under attention's metric (in place of the balance of eq. 20).
// The layout norms the latent, which would scale every token's keys and values by its own factor. A constant channel,
// which only the bias of kv_a_proj_with_mqa fills, is so large that the norm is the same for all tokens; it also
// carries the mean of the values.
#pragma once

#include <ATen/ATen.h>

#include "export/mla/mla_shape.h"
#include "export/mla/mla_statistics.h"

namespace kvc {

struct GroupedWeights {
  at::Tensor query;  // [q_dim, hidden_size] float64
  at::Tensor key;    // [kv_dim, hidden_size]
  at::Tensor value;  // the same
};

// float64, the constants rounded to the type in which they will be stored.
struct MlaLayer {
  at::Tensor q_proj;     // [num_heads * (head_dim + qk_rope_head_dim), hidden_size]
  at::Tensor kv_a_proj;  // [kv_lora_rank + qk_rope_head_dim, hidden_size]
  at::Tensor kv_a_bias;  // [kv_lora_rank + qk_rope_head_dim]
  at::Tensor kv_a_norm;  // [kv_lora_rank]
  at::Tensor
      kv_b_proj;  // [num_heads * 2 * head_dim, kv_lora_rank]: each head's key, then its value
};

MlaLayer fit_mla_layer(const GroupedWeights& weights, const MlaStatistics& statistics,
                       const ModelConfig& config, const MlaShape& shape, at::ScalarType stored);

// Squared error of the layer's attention output per token that the statistics predict for the shape.
double mla_loss(const MlaStatistics& statistics, const ModelConfig& config, const MlaShape& shape);

}  // namespace kvc
