// Places of a layer's key channels for kernels, by rotary pairs: some rebuilt from latents, some stored in them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/rope.h"
#include "runtime/compression/latent_factors.h"

namespace kvc {

// Rotary pairs of a head for kernels: a number that they are compiled for, or a larger one, which they
// refuse (check_rank_attention).
std::int64_t rank_pairs(std::int64_t head_dim);

// On the CPU, int64.
struct PairPlaces {
  at::Tensor
      channels;  // [num_kv_heads, 2 * num_pairs] of a head, first ones and then second ones; -1: no such pair
  at::Tensor angles;  // [num_kv_heads, num_pairs], -1: not turned

  std::int64_t num_pairs() const { return angles.defined() ? angles.size(1) : 0; }
};

struct KeyPlaces {
  PairPlaces rebuilt;
  // Pairs that latents store (pivot gauge), equally many per head, if that leaves fewer to rebuild; undefined: none.
  // For each head, the latent has first channels from first_columns on, then the second ones.
  PairPlaces stored;
  std::int64_t num_stored = 0;
  at::Tensor first_columns;  // [num_kv_heads]
};
// `kept`: channels that latents store verbatim.
KeyPlaces key_places(const ModelConfig& config, const RopeTables& rope, int layer,
                     const KeptChannels& kept);

}  // namespace kvc
