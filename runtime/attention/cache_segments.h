// What a latent group holds of a sequence, as segments that attention reads: latents rebuilt to
// keys at their stored positions.
#pragma once

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/compression/group_view.h"

namespace kvc {

struct KeyValue {
  at::Tensor key;    // [n, num_kv_heads, head_dim], with bias, before its norm, pre-RoPE
  at::Tensor value;  // [n, num_kv_heads, head_dim], with bias
};

// What is added to a rebuilt key and value: biases, or the mean that principal directions leave out.
// Undefined: nothing.
const at::Tensor& key_offset(const LayerWeights& weights, const Reconstruction& layer);
const at::Tensor& value_offset(const LayerWeights& weights, const Reconstruction& layer);

// B h plus biases. latent: [n, rank] in the compute dtype.
KeyValue reconstruct(const Decoder& decoder, const LayerWeights& weights,
                     const GroupFactors& factors, const Reconstruction& layer,
                     const at::Tensor& latent);

// Latent groups hold keys as attention reads them, unless RoPE depends on the length of the text: then
// before k_norm and RoPE, so that every pass turns all of them by the angles of the sequence's length,
// stored ones and rebuilt ones alike. Plain layers keep every key as it was turned when it came, as
// transformers' cache does.
bool stores_raw_keys(const ModelConfig& config, int layer);

// A group's residual slots as keys and values of layer `index` of it, keys turned at the mean position of their members,
// rounded. Every query sees them, with alpha log(count) added to its scores. Error where there are none.
Segment slot_segment(const GroupView& group, int index, double alpha, std::int64_t num_tokens);

// Everything stored for layer `index` of the group, the last `num_queries` tokens of `num_tokens`
// included. Tensors in the decoder's dtype.
std::vector<Segment> cache_segments(const GroupView& group, int index, std::int64_t num_tokens,
                                    std::int64_t num_queries);

}  // namespace kvc
