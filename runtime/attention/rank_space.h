// Attention of one new token over latents: keys are rebuilt a tile of tokens at a time, values are summed
// as latents and projected once per query head. No key or value of a latent outlives its tile.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "runtime/attention/partial_attention.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/store/row_store.h"

namespace kvc {

// Rows first .. last - 1 of a store of latents.
struct LatentRange {
  const RowStore& latents;  // rows [rank]
  at::Tensor positions;     // [rows of the store] int32, ascending
  Reconstruction layer;
  std::int64_t first = 0, last = 0;
};

// query [num_heads, head_dim] post-RoPE, over all rows of the range (at least one), which excludes
// what the layer's window hides. Not for layers whose RoPE depends on the length of the text.
PartialAttention rank_space_attention(const Decoder& decoder, int layer,
                                      const GroupFactors& factors, const at::Tensor& query,
                                      const LatentRange& range);

// Some rows of a store of latents (at least one) of principal directions, for one KV head.
struct ChosenLatents {
  const RowStore& latents;
  at::Tensor positions;  // of the chosen rows, int32, ascending
  Reconstruction layer;  // of all heads
  std::vector<RowRun> runs;
  std::int64_t kv_head = 0;
};

// The same for the query heads of that KV head, query [heads_per_kv, head_dim].
PartialAttention rank_space_attention(const Decoder& decoder, int layer,
                                      const GroupFactors& factors, const at::Tensor& query,
                                      const ChosenLatents& chosen);

}  // namespace kvc
