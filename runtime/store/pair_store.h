// The KV store of two paired layers of one sequence: directions that both share, and exact keys and values.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "runtime/store/key_value_store.h"
#include "runtime/store/latent_store.h"
#include "runtime/store/token_column.h"

namespace kvc {

// Keys, or values, of merged tokens, rows in the tokens' order.
struct PairedRows {
  PairedRows(const KvPlan& plan, const StoreOptions& options);

  RowStore direction;      // [num_kv_heads, head_dim]
  RowStore norms;          // [2, num_kv_heads]: of the lower and of the upper layer
  RowStore retained;       // [2, num_kv_heads, head_dim]: vectors that are kept besides
  RowStore retained_rows;  // [] int32, ascending: the row of `direction` that each stands for

  std::int64_t num_rows() const { return direction.num_rows(); }
  // Only rows `indices`, ascending, stay.
  void keep(const std::vector<std::int64_t>& indices);
};

// What a token policy needs to know of every token; both layers and all heads keep the same ones.
struct PairColumns {
  bool positions = false;
  bool scores = false;
};

struct PairStore {
  PairStore(const KvPlan& plan, const StoreOptions& options, const PairColumns& columns = {});

  PairedRows key, value;
  PositionList
      merged_runs;  // positions of merged tokens, while none can leave: every prompt is a run
  std::vector<KeyValueStore> exact;  // [2], of all other tokens; keys post-RoPE

  PairTokens tokens() const;  // between passes, when both layers have as many
  std::int64_t merged_bytes() const;
  std::int64_t retained_bytes() const;
  std::int64_t exact_bytes() const;
  at::Tensor merged_positions() const;  // [n] int64
  // Of the exact rows of layer `index` of the pair. [n] int64
  at::Tensor exact_positions(std::size_t index) const;
  // The last `count` exact tokens, of both layers, are merged now.
  void drop_exact(std::int64_t count);

  // Under a token policy. Rows are all tokens: merged ones, then the others; the last ones are those that were read last.
  std::optional<TokenColumn> positions{}, scores{};  // int32, float32
  std::int64_t num_rows() const { return key.num_rows() + exact.back().num_exact(); }
  std::int64_t column_bytes() const;
  void append_positions(const at::Tensor& new_positions);  // [n], of new tokens; scores 0
  void remove(const std::vector<std::int64_t>& rows);      // between passes
};

}  // namespace kvc
