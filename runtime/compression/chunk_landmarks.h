// Landmarks and outliers of tokens that become latents (core/selective_reconstruction.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/selective_reconstruction.h"
#include "runtime/store/latent_store.h"

namespace kvc {

// New chunks of one layer.
struct NewChunks {
  at::Tensor landmarks;         // [chunks, num_kv_heads, head_dim] float32
  bool continues_last = false;  // the first of them replaces the layer's last, short one
  // Outliers: stored keys and values [outliers * chunk_tokens, num_kv_heads, head_dim], and chunk indices
  // [outliers, num_kv_heads].
  at::Tensor key, value, chunks;
};

// For the `count` oldest pending rows from `first` on, the next latents. A landmark is the mean of its
// chunk's keys. Every KV head's outliers are the chunks with the smallest cosine between a key and its
// landmark (ties: the earlier chunk), in order.
std::vector<NewChunks> chunks_of(const SelectiveReconstruction& selective, const LatentStore& store,
                                 std::int64_t first, std::int64_t count);
// Stores them.
void append_chunks(const std::vector<NewChunks>& chunks, LatentStore& store);

}  // namespace kvc
