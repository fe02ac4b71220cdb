// The KV store of coded layers of one sequence: codes of the tokens that left the window, exact keys and
// values of the others.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "runtime/store/key_value_store.h"
#include "runtime/store/tile_store.h"

namespace kvc {

// Layers that are coded together: the layers of a block, or one layer with blocks of its KV heads or of its keys and its
// values.
struct CodedLayers {
  int first_layer = 0, num_layers = 1;
  int first_block = 0, num_blocks = 1;  // of KvPlan::coded
};
std::vector<CodedLayers> coded_layers(const KvPlan& plan);  // ascending

// A number of every token of layers that keep the same ones. Rows lie as keys and values do: those of coded tokens, then
// those of exact ones.
struct TokenColumn {
  TokenColumn(const std::shared_ptr<KvPool>& pool, at::ScalarType dtype)
      : codes(pool, {.shape = {}, .dtype = dtype}), exact(codes) {}

  RowStore codes, exact;

  at::Tensor tensor() const;  // [rows]
  void assign(const at::Tensor& of_codes, const at::Tensor& of_exact);
  void move(std::int64_t first, std::int64_t count);  // exact rows become the last coded ones
  std::int64_t bytes() const { return codes.bytes() + exact.bytes(); }
};

struct CodedStore {
  CodedStore(const KvPlan& plan, const CodedLayers& coded_layers, const StoreOptions& options,
             const TokenPolicy& policy = {});

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
  std::vector<TokenColumn> columns;  // positions int32; with such scores float32
  const TokenColumn& positions() const { return columns.front(); }
  TokenColumn& scores() { return columns.back(); }
  std::int64_t num_rows() const { return num_codes() + num_exact(); }
  KeptCodedTokens tokens() const { return {num_rows(), num_codes()}; }
  std::int64_t column_bytes() const;
  void append_positions(const at::Tensor& new_positions);  // [n], of new tokens; scores 0
};

}  // namespace kvc
