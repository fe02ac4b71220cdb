// A latent group's tokens of a sequence as segments that attention reads: latents rebuilt to keys
// at their stored positions.
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

// Added to a rebuilt key and value: biases, or the mean that principal directions omit. Undefined:
// nothing.
const at::Tensor& key_offset(const LayerWeights& weights, const Reconstruction& layer);
const at::Tensor& value_offset(const LayerWeights& weights, const Reconstruction& layer);

// B h plus biases. latent: [n, rank] in the compute dtype.
KeyValue reconstruct(const Decoder& decoder, const LayerWeights& weights,
                     const GroupFactors& factors, const Reconstruction& layer,
                     const at::Tensor& latent);

// Latent groups store keys as attention reads them. If RoPE depends on the length of the text, they
// store them before k_norm and RoPE, and every pass rotates stored and rebuilt keys by the angles of
// the sequence's length. Plain layers keep each key as it was rotated on arrival, as transformers'
// cache does.
bool stores_raw_keys(const ModelConfig& config, int layer);

// A group's residual slots as keys and values of layer `index` of it, keys turned at the mean position of their members,
// rounded. Every query sees them, with alpha log(count) added to its scores. Error where there are none.
Segment slot_segment(const GroupView& group, int index, double alpha, std::int64_t num_tokens);

// Everything stored for layer `index` of the group, including the last `num_queries` tokens of
// `num_tokens`. Tensors in the decoder's dtype.
std::vector<Segment> cache_segments(const GroupView& group, int index, std::int64_t num_tokens,
                                    std::int64_t num_queries);

}  // namespace kvc
