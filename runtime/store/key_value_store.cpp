#include "runtime/store/key_value_store.h"

#include <algorithm>

#include "core/kv_plan_bytes.h"
#include "runtime/store/element_type.h"

namespace kvc {
namespace {

constexpr std::int64_t kRowsAtOnce =
    32 * kQuantisedRows;  // bounds the float32 copy of keys and values

static_assert(kQuantisedRows == kQuantisedTokens);

bool saves_memory(std::int64_t rank, const StoreOptions& options) {
  return options.codes && quantises_latents(rank, dtype_of(*options.codes));
}

RowStore exact_rows(std::vector<std::int64_t> shape, const StoreOptions& options) {
  return {options.pool, {.shape = std::move(shape), .dtype = options.dtype}};
}

RowStore codes(std::vector<std::int64_t> shape, KvScales scales, const StoreOptions& options) {
  return {options.pool,
          {.shape = std::move(shape), .dtype = options.dtype, .codes = {{*options.codes, scales}}}};
}

}  // namespace

std::int64_t KeyValueStore::bytes() const {
  return key.bytes() + value.bytes() + (key_codes ? key_codes->bytes() : 0) +
         (value_codes ? value_codes->bytes() : 0) + (positions ? positions->bytes() : 0);
}

void KeyValueStore::append(const at::Tensor& new_key, const at::Tensor& new_value) {
  key.append(new_key);
  value.append(new_value);
}

void KeyValueStore::append(const at::Tensor& new_key, const at::Tensor& new_value,
                           const at::Tensor& new_positions) {
  append(new_key, new_value);
  if (positions) {
    positions->append(new_positions);
  }
}

void KeyValueStore::quantise(std::int64_t first, std::int64_t count, const KeyOfRows& to_store) {
  for (std::int64_t offset = 0; offset < count; offset += kRowsAtOnce) {
    const std::int64_t rows = std::min(kRowsAtOnce, count - offset);
    key_codes->append(to_store(key.rows(first + offset, rows, at::kFloat), offset));
    if (value_codes) {
      value_codes->append(value.rows(first + offset, rows, value.dtype()));
    }
  }
  key.erase(first, count);
  if (value_codes) {
    value.erase(first, count);
  }
}

void KeyValueStore::code_rows_apart() {
  if (codes_are_rows()) {
    return;
  }
  RowStore keys = key_codes->with_row_scales();
  for (std::int64_t first = 0; first < num_codes(); first += kRowsAtOnce) {
    keys.append(key_codes->rows(first, std::min(kRowsAtOnce, num_codes() - first), at::kFloat));
  }
  key_codes = std::move(keys);
}

KeyValueStore plain_store(const KvPlan& plan, const StoreOptions& options) {
  if (plan.own_widths) {
    const std::vector<std::int64_t> latent{1, plan.own_widths->key};
    KeyValueStore store{.key = exact_rows(latent, options),
                        .value = exact_rows({1, plan.own_widths->value}, options)};
    if (saves_memory(plan.own_widths->key, options)) {
      store.key_codes = codes(latent, KvScales::kPerRow, options);
    }
    return store;
  }
  KeyValueStore store = exact_store(plan, options);
  if (options.codes) {
    const std::vector<std::int64_t> row{plan.num_kv_heads, plan.head_dim};
    store.key_codes = codes(row, KvScales::kPerChannel, options);
    store.value_codes = codes(row, KvScales::kPerRow, options);
  }
  return store;
}

KeyValueStore exact_store(const KvPlan& plan, const StoreOptions& options) {
  const std::vector<std::int64_t> row{plan.num_kv_heads, plan.head_dim};
  return {.key = exact_rows(row, options), .value = exact_rows(row, options)};
}

RowStore latent_rows(std::int64_t rank, const StoreOptions& options) {
  if (saves_memory(rank, options)) {
    return codes({rank}, KvScales::kPerRow, options);
  }
  StoreOptions precise = options;  // float16 where it takes no more than bfloat16
  precise.dtype = options.dtype == at::kBFloat16 ? at::kHalf : options.dtype;
  return exact_rows({rank}, precise);
}

}  // namespace kvc
