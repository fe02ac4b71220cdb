// The forms in which caches hold keys: rotated, or as they were before k_norm and RoPE.
#pragma once

#include <ATen/ATen.h>

#include "model/decoder.h"
#include "model/rope.h"

namespace kvc {

// Latent groups store keys as attention reads them. If RoPE depends on the length of the text, they
// store them before k_norm and RoPE, and every pass rotates stored and rebuilt keys by the angles of
// the sequence's length. Plain layers keep each key as it was rotated on arrival, as transformers'
// cache does.
bool stores_raw_keys(const ModelConfig& config, int layer);

// Keys of codes in the form of exact rows. [n, num_kv_heads, head_dim]
at::Tensor key_of_codes(const Decoder& decoder, int layer, const at::Tensor& key,
                        const at::Tensor& positions);
// Keys of exact rows in the form of codes. [n, num_kv_heads, head_dim] float32
at::Tensor key_for_codes(const Decoder& decoder, int layer, const at::Tensor& key,
                         const at::Tensor& positions);

// RoPE by float32 angles, as kernels have them. key [n, num_kv_heads, head_dim] float32, before it; positions on the CPU
at::Tensor turn_key(const RopeTables& rope, int layer, const at::Tensor& key,
                    const at::Tensor& positions);

}  // namespace kvc
