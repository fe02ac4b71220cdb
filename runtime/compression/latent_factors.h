// The tensors of a plan's latent groups, loaded once per engine; names in core/conversion_file.h.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"

namespace kvc {

// Key channels that the latent contains verbatim: the unit rows that the pivot gauge gives B
// (convert/latent/merging.h).
struct KeptChannels {
  at::Tensor channels;  // [k] of the key, or undefined where there are none
  at::Tensor numbers;   // [k] of the latent
  at::Tensor others;    // [kv_dim - k] channels that are rebuilt
  at::Tensor proj;      // [kv_dim - k, key_rank] from the latent
};

// Maps a latent to one layer's pre-RoPE key and value: without biases, and the key before its norm;
// for principal directions complete ones less their mean.
struct Reconstruction {
  at::Tensor key;    // [kv_dim, key_rank]
  at::Tensor value;  // [kv_dim, value_rank]
  KeptChannels kept{};
  bool is_principal = false;
  at::Tensor key_mean{}, value_mean{};  // [kv_dim] of principal directions; undefined: zero
};

// Principal directions of one layer's complete keys and values: its contribution to a latent.
struct LayerEncoder {
  at::Tensor key;    // [key_rank, kv_dim] float32
  at::Tensor value;  // [value_rank, kv_dim] float32
};

// The kept channels of a key's projection [kv_dim, key_rank].
KeptChannels kept_channels(const at::Tensor& proj);

struct GroupFactors {
  std::int64_t key_rank = 0;  // first channels of a latent that make keys: split_kv only, else rank
  std::int64_t value_rank = 0;         // last channels of a latent that make values: likewise
  at::Tensor latent_proj;              // A [rank, hidden_size]; split_kv: key rows, then value rows
  at::Tensor encoder;                  // P [rank, 2 * num_layers * kv_dim] float32; rule ls
  std::vector<Reconstruction> layers;  // [num_layers], for a layer's own latent
  // [num_layers], for merged latents; those of a request's basis are in its cache.
  std::vector<Reconstruction> merged_layers;
  std::vector<LayerEncoder> encoders;  // [num_layers], of calibrated directions
  at::Tensor mean_latent;              // [rank] float32, the latent of their mean
};

struct LatentFactors {
  std::vector<GroupFactors> groups;

  std::int64_t bytes() const;
};

// Loads only what the plan's policy uses. Throws Error naming a tensor that is missing or has
// another shape.
LatentFactors load_latent_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                  std::int64_t hidden_size, at::ScalarType dtype);

}  // namespace kvc
