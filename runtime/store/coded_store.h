// The KV store of coded layers of one sequence: codes of the tokens that left the window, exact keys and
// values of the others.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/store/key_value_store.h"
#include "runtime/store/tile_store.h"

namespace kvc {

// Layers that are coded together: the layers of a block, or one layer with a block for every KV head.
struct CodedLayers {
  int first_layer = 0, num_layers = 1;
  int first_block = 0, num_blocks = 1;  // of KvPlan::coded
};
std::vector<CodedLayers> coded_layers(const KvPlan& plan);  // ascending

struct CodedStore {
  CodedStore(const KvPlan& plan, const CodedLayers& coded_layers, const StoreOptions& options);

  CodedLayers layers;
  // [num_layers]: sinks and then the last tokens. Keys post-RoPE, or before it (stores_raw_keys), after
  // their norm.
  std::vector<KeyValueStore> exact;
  std::vector<TileStore> codes;  // [num_blocks], of the tokens between them

  // Between passes, when all layers have as many.
  std::int64_t num_exact() const { return exact.back().num_exact(); }
  std::int64_t num_codes() const { return codes.back().num_tokens(); }
  std::int64_t exact_bytes() const;
  std::int64_t code_bytes() const;
};

}  // namespace kvc
