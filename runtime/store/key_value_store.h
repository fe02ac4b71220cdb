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
  at::ScalarType dtype = at::kFloat;  // of keys, values and latents that are not coded
  std::optional<KvElement> codes{};   // integers that take their place
};

// Two parts, each in the tokens' order. New rows are exact; under an integer type whole blocks become
// codes (when: core/kv_plan.h).
struct KeyValueStore {
  RowStore key, value;  // exact: rows [num_kv_heads, head_dim], post-RoPE, or raw (stores_raw_keys)
  // Keys before RoPE, unless its angles depend on the length of the text. Absent: rows stay exact.
  std::optional<RowStore> key_codes{}, value_codes{};
  // Ascending int32 positions, if rows are not all tokens of a text. Then there are no codes.
  std::optional<RowStore> positions{};

  std::int64_t num_exact() const { return key.num_rows(); }
  std::int64_t num_codes() const { return key_codes ? key_codes->num_rows() : 0; }
  std::int64_t bytes() const;
  void append(const at::Tensor& new_key, const at::Tensor& new_value);
  // The same, with `new_positions` [n] if the store has positions.
  void append(const at::Tensor& new_key, const at::Tensor& new_value,
              const at::Tensor& new_positions);
  // Exact rows first .. first + count - 1 become codes with scales per row, so rows can leave one by
  // one. `to_store` converts keys of some of these rows (float32); it gets the index of the first one,
  // relative to `first`.
  void code_rows_apart();
  bool codes_are_rows() const { return key_codes && key_codes->has_row_scales(); }
  using KeyOfRows = std::function<at::Tensor(const at::Tensor& key, std::int64_t offset)>;
  void quantise(std::int64_t first, std::int64_t count, const KeyOfRows& to_store);
};

// Store of a plain layer: keys and values per KV head, or the model's own latents as one head's keys,
// beside exact rotary keys.
KeyValueStore plain_store(const KvPlan& plan, const StoreOptions& options);
// Store of keys and values per KV head that stay exact.
KeyValueStore exact_store(const KvPlan& plan, const StoreOptions& options);
// Store of latents: codes from the start if that saves memory.
RowStore latent_rows(std::int64_t rank, const StoreOptions& options);

}  // namespace kvc
