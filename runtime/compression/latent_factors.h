// The tensors of a plan's latent groups, loaded once per engine; names in core/conversion_file.h.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"

namespace kvc {

// Key channels that are numbers of the latent themselves: the unit rows that the pivot gauge gives B
// (convert/latent/pivot_gauge.h).
struct KeptChannels {
  at::Tensor channels;  // [k] of the key, or undefined where there are none
  at::Tensor numbers;   // [k] of the latent
  at::Tensor others;    // [kv_dim - k] channels that are rebuilt
  at::Tensor proj;      // [kv_dim - k, key_rank] from the latent
};

// From a latent to one layer's bias-free pre-RoPE key (before its norm) and bias-free value.
struct Reconstruction {
  at::Tensor key;    // [kv_dim, key_rank]
  at::Tensor value;  // [kv_dim, value_rank]
  KeptChannels kept{};
};

// Those of a key's projection [kv_dim, key_rank].
KeptChannels kept_channels(const at::Tensor& proj);
// latent [n, key_rank], of the factors' dtype; [n, kv_dim] bias-free.
at::Tensor rebuild_key(const Reconstruction& layer, const at::Tensor& latent);

struct GroupFactors {
  std::int64_t key_rank = 0;  // first channels of a latent that make keys: split_kv only, else rank
  std::int64_t value_rank = 0;         // last channels of a latent that make values: likewise
  at::Tensor latent_proj;              // A [rank, hidden_size]; split_kv: key rows, then value rows
  at::Tensor encoder;                  // P [rank, 2 * num_layers * kv_dim] float32; rule ls
  std::vector<Reconstruction> layers;  // [num_layers], for a layer's own latent
  std::vector<Reconstruction> merged_layers;  // [num_layers], for merged latents
};

struct LatentFactors {
  std::vector<GroupFactors> groups;

  std::int64_t bytes() const;
};

// Only what the plan's policy uses is loaded. Throws Error naming a tensor that is missing or
// misshapen.
LatentFactors load_latent_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                  std::int64_t hidden_size, at::ScalarType dtype);

}  // namespace kvc
