// Keys and values of some tokens of one layer of one sequence, exact or as integer codes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/store/row_store.h"

namespace kvc {

struct StoreOptions {
  std::shared_ptr<KvPool> pool;
  at::ScalarType dtype = at::kFloat;  // of keys, values and latents that are stored as numbers
  std::optional<KvElement> codes{};   // integers that take their place
};

// Two parts, each in the tokens' order. New rows are exact; under an integer type whole blocks of them
// become codes (core/kv_plan.h says when).
struct KeyValueStore {
  RowStore key, value;  // exact: rows [num_kv_heads, head_dim], post-RoPE, or raw (stores_raw_keys)
  // Keys before RoPE, unless its angles depend on the length of the text. Absent: rows stay exact.
  std::optional<RowStore> key_codes{}, value_codes{};
  // Of rows that are not all tokens of a text, ascending: int32. Then there are no codes.
  std::optional<RowStore> positions{};

  std::int64_t num_exact() const { return key.num_rows(); }
  std::int64_t num_codes() const { return key_codes ? key_codes->num_rows() : 0; }
  std::int64_t bytes() const;
  void append(const at::Tensor& new_key, const at::Tensor& new_value);
  // Likewise, at `new_positions` [n] where the store holds such.
  void append(const at::Tensor& new_key, const at::Tensor& new_value,
              const at::Tensor& new_positions);
  // Exact rows first .. first + count - 1 become codes, keys as `to_store` makes them of some of these
  // rows, float32, the number of the first of which, from `first` on, it is told.
  // Codes get scales of their own in every row, so that rows can leave one by one.
  void code_rows_apart();
  bool codes_are_rows() const { return key_codes && key_codes->has_row_scales(); }
  using KeyOfRows = std::function<at::Tensor(const at::Tensor& key, std::int64_t offset)>;
  void quantise(std::int64_t first, std::int64_t count, const KeyOfRows& to_store);
};

// A plain layer's: keys and values per KV head, or the model's own latents as if they were one head's
// keys, beside rotary keys that stay exact.
KeyValueStore plain_store(const KvPlan& plan, const StoreOptions& options);
// Keys and values per KV head that stay exact.
KeyValueStore exact_store(const KvPlan& plan, const StoreOptions& options);
// Latents: codes from the start where that saves memory.
RowStore latent_rows(std::int64_t rank, const StoreOptions& options);

}  // namespace kvc
