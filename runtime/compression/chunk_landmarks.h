// Landmarks and outliers of tokens that become latents (core/selective_reconstruction.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/selective_reconstruction.h"
#include "runtime/store/latent_store.h"

namespace kvc {

// Of one layer.
struct NewChunks {
  at::Tensor landmarks;         // [chunks, num_kv_heads, head_dim] float32
  bool continues_last = false;  // the first of them takes the place of the layer's last, short one
  // Of the chunks that are exact: keys and values [outliers * chunk_tokens, num_kv_heads, head_dim], as they are
  // stored, and which chunks [outliers, num_kv_heads].
  at::Tensor key, value, chunks;
};

// Of the `count` oldest pending rows from `first` on, which will be the latents behind those that there are.
// A landmark is the mean of its chunk's keys; outliers are, of every KV head, the chunks with the smallest
// cosine between a key and its landmark, ties to the earlier chunk, in order.
std::vector<NewChunks> chunks_of(const SelectiveReconstruction& selective, const LatentStore& store,
                                 std::int64_t first, std::int64_t count);
// Stores them.
void append_chunks(const std::vector<NewChunks>& chunks, LatentStore& store);

}  // namespace kvc
