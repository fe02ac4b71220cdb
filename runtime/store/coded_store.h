// The KV store of coded layers of one sequence: codes of the tokens that left the window, exact keys and
// values of the others.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/store/key_value_store.h"
#include "runtime/store/tile_store.h"
#include "runtime/store/token_column.h"

namespace kvc {

// Layers that are coded together: the layers of a block, or one layer with a block for every KV head.
struct CodedLayers {
  int first_layer = 0, num_layers = 1;
  int first_block = 0, num_blocks = 1;  // of KvPlan::coded
};
std::vector<CodedLayers> coded_layers(const KvPlan& plan);  // ascending

// Data of every token that a token policy requires; all layers and heads of a store keep the same
// tokens.
struct CodedColumns {
  bool positions = false;
  bool scores = false;
};

struct CodedStore {
  CodedStore(const KvPlan& plan, const CodedLayers& coded_layers, const StoreOptions& options,
             const CodedColumns& columns = {});

  CodedLayers layers;
  // [num_layers]: sinks, then the last tokens. Keys are normed, and post-RoPE unless stores_raw_keys.
  std::vector<KeyValueStore> exact;
  std::vector<TileStore> codes;  // [num_blocks], of the tokens between them

  // Valid between passes, when all layers have equally many.
  std::int64_t num_exact() const { return exact.back().num_exact(); }
  std::int64_t num_codes() const { return codes.back().num_tokens(); }
  std::int64_t exact_bytes() const;
  std::int64_t code_bytes() const;

  // For token policies. Rows are all tokens: coded ones, then the others, the newest last. After a token has left,
  // positions are not consecutive.
  bool has_left = false;
  std::optional<TokenColumn> positions{}, scores{};  // int32, float32
  std::int64_t num_rows() const { return num_codes() + num_exact(); }
  std::int64_t column_bytes() const;
  void append_positions(const at::Tensor& new_positions);  // [n], of new tokens; scores 0
};

}  // namespace kvc
