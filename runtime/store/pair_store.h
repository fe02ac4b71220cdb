// The KV store of two paired layers of one sequence: shared directions, and exact keys and values.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "runtime/store/key_value_store.h"
#include "runtime/store/latent_store.h"

namespace kvc {

// Keys, or values, of merged tokens, rows in the tokens' order.
struct PairedRows {
  PairedRows(const KvPlan& plan, const StoreOptions& options);

  RowStore direction;      // [num_kv_heads, head_dim]
  RowStore norms;          // [2, num_kv_heads]: of the lower and of the upper layer
  RowStore retained;       // [2, num_kv_heads, head_dim]: retained vectors
  RowStore retained_rows;  // [] int32, ascending: their rows of `direction`

  std::int64_t num_rows() const { return direction.num_rows(); }
};

struct PairStore {
  PairStore(const KvPlan& plan, const StoreOptions& options);

  PairedRows key, value;
  PositionList merged_positions;     // every prompt is a run
  std::vector<KeyValueStore> exact;  // [2], of all other tokens; keys post-RoPE

  PairTokens tokens() const;  // between passes, when both layers have equally many
  std::int64_t merged_bytes() const;
  std::int64_t retained_bytes() const;
  std::int64_t exact_bytes() const;
  // Positions of the exact rows of layer `index` of the pair. [n] int64
  at::Tensor exact_positions(std::size_t index) const;
  // Drops the last `count` exact tokens of both layers, which are merged now.
  void drop_exact(std::int64_t count);
};

}  // namespace kvc
