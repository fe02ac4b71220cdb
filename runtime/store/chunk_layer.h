// One layer's landmarks and exact chunks under selective reconstruction (core/selective_reconstruction.h).
#pragma once

#include <cstdint>

#include "runtime/store/key_value_store.h"

namespace kvc {

struct ChunkLayer {
  RowStore landmarks;      // [chunks], rows [num_kv_heads, head_dim]: means of keys, post-RoPE
  KeyValueStore outliers;  // exact; a row has a token for every KV head, each head's own choice
  RowStore
      outlier_chunks;  // rows [num_kv_heads] int32: their chunk indices, chunk_tokens rows each

  std::int64_t bytes() const {
    return landmarks.bytes() + outliers.bytes() + outlier_chunks.bytes();
  }
};

inline ChunkLayer chunk_layer(const KvPlan& plan, const StoreOptions& options) {
  const RowFormat landmark{.shape = {plan.num_kv_heads, plan.head_dim}, .dtype = options.dtype};
  const RowFormat chunk{.shape = {plan.num_kv_heads}, .dtype = at::kInt};
  return {.landmarks = {options.pool, landmark},
          .outliers = exact_store(plan, options),
          .outlier_chunks = {options.pool, chunk}};
}

}  // namespace kvc
