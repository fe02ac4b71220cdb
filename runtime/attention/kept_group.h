// Token policies on latent groups: all layers and heads of a group keep the same tokens, chosen by attention that is
// summed over them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/token_policy.h"
#include "model/decoder.h"
#include "runtime/attention/latent_attention.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// One layer of a group after it attended to new tokens of one sequence.
struct GroupAttended {
  const Decoder& decoder;
  const TokenPolicy& policy;
  GroupLayer layer;
  at::Tensor query;      // [n, num_heads, head_dim] post-RoPE
  at::Tensor positions;  // [n]
  std::int64_t end = 0;  // as LayerSource::attended has it
};

// Layers in turn; after the last one the tokens leave that the policy does not keep.
void finish_group(const GroupAttended& attended, KvCache& cache);

}  // namespace kvc
