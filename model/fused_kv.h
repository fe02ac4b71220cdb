// Keys and values of a layer that stores none, combined from other layers' (plan source `fused`, core/kv_sources.h;
// FusedKV, arXiv 2512.03870). Differentiable, any floating dtype.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// A head's channels in pairs: those that RoPE rotates together, then the channels that it leaves
// alone, again as halves.
struct ChannelPairs {
  at::Tensor first, second;     // [head_dim / 2] channels
  std::int64_t num_turned = 0;  // pairs that RoPE rotates; they come first
};
ChannelPairs channel_pairs(const ModelConfig& config, int layer);

// The keys, or the values, of one fused layer.
struct Fusion {
  FusionForm form = FusionForm::kChannel;
  // channel [sources, num_kv_heads, head_dim]; complex [sources, 2, num_kv_heads, head_dim / 2], real and
  // imaginary part of every pair's factor; full [kv_dim, sources * kv_dim]
  at::Tensor weight;
  at::Tensor heads;  // [sources, num_kv_heads] int64, or undefined: each head reads its own number

  std::int64_t num_sources(std::int64_t kv_dim) const {
    return form == FusionForm::kFull ? weight.size(1) / kv_dim : weight.size(0);
  }
};

// The layer's rows from the sources' rows, [num_tokens, num_kv_heads, head_dim] each and in the result.
// Keys are all before or all after RoPE; form full requires before.
at::Tensor fuse(const Fusion& fusion, const ChannelPairs& pairs,
                const std::vector<at::Tensor>& sources);
// q . fuse(...) = sum_s fold_query(..., s, q) . source s, for forms channel and complex. query
// [num_tokens, num_heads, head_dim], rotated like the keys.
at::Tensor fold_query(const Fusion& fusion, const ChannelPairs& pairs, std::int64_t source,
                      const at::Tensor& query);

struct FusedWeights {
  Fusion key, value;
};

// Names, shapes and dtypes as in core/conversion_file.h. Error naming a tensor that is missing or has
// another shape.
FusedWeights load_fused_weights(const Checkpoint& checkpoint, const KvPlan& plan,
                                const FusedLayer& layer, at::ScalarType dtype);
// "kvconvert.fused.<layer>.<part>"
std::string fused_tensor_name(int layer, const char* part);
// For key or value.
std::vector<std::int64_t> fused_shape(const KvPlan& plan, const FusedLayer& layer, bool key);

// True if `layer` can read `source`: it has the same RoPE, and `source` a window no shorter.
bool can_read(const ModelConfig& config, int layer, int source);

}  // namespace kvc
