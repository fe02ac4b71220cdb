// Keys and values rebuilt from latents, before RoPE.
#pragma once

#include <ATen/ATen.h>

#include "model/decoder.h"
#include "runtime/compression/latent_factors.h"

namespace kvc {

struct KeyValue {
  at::Tensor key;    // [n, num_kv_heads, head_dim], with bias, before its norm, pre-RoPE
  at::Tensor value;  // [n, num_kv_heads, head_dim], with bias
};

// latent [n, key_rank], of the factors' dtype; [n, kv_dim] bias-free.
at::Tensor rebuild_key(const Reconstruction& layer, const at::Tensor& latent);

// Added to a rebuilt key and value: biases, or the mean that principal directions omit. Undefined:
// nothing.
const at::Tensor& key_offset(const LayerWeights& weights, const Reconstruction& layer);
const at::Tensor& value_offset(const LayerWeights& weights, const Reconstruction& layer);

// B h plus biases. latent: [n, rank] in the compute dtype.
KeyValue reconstruct(const Decoder& decoder, const LayerWeights& weights,
                     const GroupFactors& factors, const Reconstruction& layer,
                     const at::Tensor& latent);
// The key alone of reconstruct().
at::Tensor reconstruct_key(const Decoder& decoder, const LayerWeights& weights,
                           const GroupFactors& factors, const Reconstruction& layer,
                           const at::Tensor& latent);

}  // namespace kvc
