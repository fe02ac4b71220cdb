// Attention of one new token over the chunks of latents that it is likely to attend to: the others are not
// rebuilt (core/selective_reconstruction.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/selective_reconstruction.h"
#include "model/decoder.h"
#include "runtime/attention/latent_attention.h"
#include "runtime/attention/partial_attention.h"
#include "runtime/store/chunk_layer.h"
#include "runtime/store/latent_store.h"

namespace kvc {

// True if all latents are rebuilt, without outliers.
bool rebuilds_all(const SelectiveReconstruction& selective, const GroupTokens& tokens);

// The chunks of `latents` tokens that are rebuilt for every KV head's query heads, ascending, without its outliers.
// query [num_heads, head_dim] post-RoPE. With s = scale * query landmark, a chunk's score is the largest share exp(s)
// / sum exp(s) over chunks other than outliers among the KV head's query heads; ties go to the earlier chunk.
// [num_kv_heads]
using ChunkLists = std::vector<std::vector<std::int64_t>>;
ChunkLists choose_chunks(const SelectiveReconstruction& selective, const ChunkLayer& chunks,
                         const at::Tensor& query, const AttentionRule& rule, std::int64_t latents);

// Attention over these chunks alone: parts to join with attention over the outliers and over tokens
// without latents.
std::vector<PartialAttention> attend_chosen(const GroupLayer& layer, const at::Tensor& query);

}  // namespace kvc
