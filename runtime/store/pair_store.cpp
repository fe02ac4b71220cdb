#include "runtime/store/pair_store.h"

namespace kvc {
namespace {

RowStore rows_of(std::vector<std::int64_t> shape, const StoreOptions& options) {
  return {options.pool, {.shape = std::move(shape), .dtype = options.dtype}};
}

}  // namespace

PairedRows::PairedRows(const KvPlan& plan, const StoreOptions& options)
    : direction(rows_of({plan.num_kv_heads, plan.head_dim}, options)),
      norms(rows_of({2, plan.num_kv_heads}, options)),
      retained(rows_of({2, plan.num_kv_heads, plan.head_dim}, options)),
      retained_rows(options.pool, {.shape = {}, .dtype = at::kInt}) {}

PairStore::PairStore(const KvPlan& plan, const StoreOptions& options)
    : key(plan, options),
      value(plan, options),
      merged_positions(options, /*per_token=*/false),
      exact(2, exact_store(plan, options)) {}

PairTokens PairStore::tokens() const {
  return {.merged = key.num_rows(),
          .retained_keys = key.retained.num_rows(),
          .retained_values = value.retained.num_rows(),
          .exact = exact.back().num_exact()};
}

std::int64_t PairStore::merged_bytes() const {
  return key.direction.bytes() + key.norms.bytes() + value.direction.bytes() + value.norms.bytes();
}

std::int64_t PairStore::retained_bytes() const {
  return key.retained.bytes() + key.retained_rows.bytes() + value.retained.bytes() +
         value.retained_rows.bytes();
}

std::int64_t PairStore::exact_bytes() const { return exact.front().bytes() + exact.back().bytes(); }

at::Tensor PairStore::exact_positions(std::size_t index) const {
  const at::Tensor is_exact =
      at::ones({merged_positions.size() + exact[index].num_exact()}, at::kBool);
  return is_exact.index_fill_(0, merged_positions.tensor(), false).nonzero().squeeze(1);
}

void PairStore::drop_exact(std::int64_t count) {
  const std::int64_t left = exact.front().num_exact() - count;
  merged_positions.append(exact_positions(0).slice(0, left));
  for (KeyValueStore& layer : exact) {
    layer.key.truncate(left);
    layer.value.truncate(left);
  }
}

}  // namespace kvc
