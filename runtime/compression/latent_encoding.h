// Encodes pending tokens of a latent group: one merged latent per token, and a score of how well it
// represents all layers.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/compression/group_view.h"

namespace kvc {

struct EncodedTokens {
  at::Tensor latents;  // [n, rank] float32
  at::Tensor scores;   // [n] float32, higher merges first
};

// Encodes pending rows `rows`, ascending, at `positions` [n] int64.
//   ls        y = stacked bias-free pre-RoPE keys (before their norm) and values of all layers, h =
//   P y;
//             score = -||y - B h||^2 / ||y||^2, the share of y that is lost
//   weighted  h = sum_l w_l A x_l; score = cos(A x_first, A x_last)
EncodedTokens encode_pending(const GroupView& group, const std::vector<std::int64_t>& rows,
                             const at::Tensor& positions);
// Their scores alone. [n] float32
at::Tensor pending_scores(const GroupView& group, const std::vector<std::int64_t>& rows,
                          const at::Tensor& positions);

// The same for unmerged plain rows of a group under rule ls whose keys have no norm. [rows, rank]
// float32
at::Tensor encode_unmerged(const GroupView& group, const std::vector<std::int64_t>& rows);

// What follows is on any device.
// y of one layer, [n, 2 * kv_dim] float32, from its tokens' keys [n, num_kv_heads, head_dim] before RoPE and values. rms:
// key_rms() of keys that are after their norm; undefined: they are before it.
at::Tensor stacked_layer(const LayerWeights& weights, const at::Tensor& key,
                         const at::Tensor& value, const at::Tensor& rms);
// Encodes y [n, 2 * num_layers * kv_dim] float32 under rule ls, with the reconstruction of merged latents.
EncodedTokens encode_stacked(const at::Tensor& stacked, const at::Tensor& encoder,
                             const std::vector<Reconstruction>& layers);
// Under rules with weights, from A x_l of each layer `index` of the group, [n, rank] float32.
EncodedTokens encode_weighted(const LatentGroup& group,
                              const std::function<at::Tensor(int index)>& held);
// [n, num_kv_heads, head_dim] from keys after their norm, and key_rms() of them; float32. A channel with a norm
// weight of zero is lost but has no effect: it becomes zero.
at::Tensor key_before_norm(const at::Tensor& key, const Norm& k_norm, const at::Tensor& rms);

// cos of each row of a and b, [n, rank] of any floating type. [n] float32
at::Tensor row_cosine(const at::Tensor& a, const at::Tensor& b);
// sqrt(mean of squares + eps), the divisor of k_norm for the key [n, num_kv_heads, head_dim]: one
// number per head, or per token for all its heads. [n, num_kv_heads] float32
at::Tensor key_rms(const at::Tensor& key, const Norm& k_norm);
// The same of the keys that a layer's own latents [n, rank] rebuild, of `shape`.
at::Tensor rebuilt_key_rms(const LayerWeights& weights, const Reconstruction& layer,
                           const at::Tensor& latent, at::IntArrayRef shape);

}  // namespace kvc
