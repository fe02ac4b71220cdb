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

void PairedRows::keep(const std::vector<std::int64_t>& indices) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(num_rows()), -1);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    places[static_cast<std::size_t>(indices[i])] = static_cast<std::int64_t>(i);
  }
  const at::Tensor own = retained_rows.rows(at::kInt);
  const auto* row = own.const_data_ptr<std::int32_t>();
  std::vector<std::int64_t> stay;
  std::vector<std::int32_t> rows;
  for (std::int64_t i = 0; i < own.size(0); ++i) {
    if (const std::int64_t place = places[static_cast<std::size_t>(row[i])]; place >= 0) {
      stay.push_back(i);
      rows.push_back(static_cast<std::int32_t>(place));
    }
  }
  direction.keep(indices);
  norms.keep(indices);
  retained.keep(stay);
  retained_rows.truncate(0);
  retained_rows.append(at::tensor(rows, at::kInt));
}

PairStore::PairStore(const KvPlan& plan, const StoreOptions& options, const PairColumns& columns)
    : key(plan, options),
      value(plan, options),
      merged_runs(options, /*per_token=*/false),
      exact(2, exact_store(plan, options)) {
  if (columns.positions) {
    positions.emplace(options.pool, at::kInt);
  }
  if (columns.scores) {
    scores.emplace(options.pool, at::kFloat);
  }
}

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

at::Tensor PairStore::merged_positions() const {
  return positions ? positions->compressed.rows(at::kInt).to(at::kLong) : merged_runs.tensor();
}

at::Tensor PairStore::exact_positions(std::size_t index) const {
  if (positions) {
    return positions->exact.rows(0, exact[index].num_exact(), at::kInt).to(at::kLong);
  }
  const at::Tensor is_exact = at::ones({merged_runs.size() + exact[index].num_exact()}, at::kBool);
  return is_exact.index_fill_(0, merged_positions(), false).nonzero().squeeze(1);
}

void PairStore::drop_exact(std::int64_t count) {
  const std::int64_t left = exact.front().num_exact() - count;
  const at::Tensor dropped = exact_positions(0).slice(0, left);
  for (KeyValueStore& layer : exact) {
    layer.key.truncate(left);
    layer.value.truncate(left);
  }
  if (!positions) {
    merged_runs.append(dropped);
    return;
  }
  for (std::optional<TokenColumn>* column : {&positions, &scores}) {
    if (*column) {
      (*column)->move(left, count);
    }
  }
}

std::int64_t PairStore::column_bytes() const {
  return (positions ? positions->bytes() : 0) + (scores ? scores->bytes() : 0);
}

void PairStore::append_positions(const at::Tensor& new_positions) {
  positions->exact.append(new_positions);
  if (scores) {
    scores->exact.append(at::zeros({new_positions.size(0)}, at::kFloat));
  }
}

void PairStore::remove(const std::vector<std::int64_t>& rows) {
  const std::int64_t num_merged = key.num_rows();
  std::vector<bool> leaves(static_cast<std::size_t>(num_rows()));
  for (const std::int64_t row : rows) {
    leaves[static_cast<std::size_t>(row)] = true;
  }
  std::vector<std::int64_t> merged, others;
  for (std::int64_t row = 0; row < num_rows(); ++row) {
    if (!leaves[static_cast<std::size_t>(row)]) {
      row < num_merged ? merged.push_back(row) : others.push_back(row - num_merged);
    }
  }
  if (static_cast<std::int64_t>(merged.size()) < num_merged) {
    key.keep(merged);
    value.keep(merged);
  }
  for (KeyValueStore& layer : exact) {
    layer.key.keep(others);
    layer.value.keep(others);
  }
  for (std::optional<TokenColumn>* column : {&positions, &scores}) {
    if (*column) {
      (*column)->compressed.keep(merged);
      (*column)->exact.keep(others);
    }
  }
}

}  // namespace kvc
