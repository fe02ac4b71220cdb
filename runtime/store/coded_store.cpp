#include "runtime/store/coded_store.h"

#include <numeric>

#include "runtime/store/row_store.h"

namespace kvc {

at::Tensor TokenColumn::tensor() const {
  return at::cat({codes.rows(codes.dtype()), exact.rows(exact.dtype())});
}

void TokenColumn::assign(const at::Tensor& of_codes, const at::Tensor& of_exact) {
  codes.truncate(0);
  codes.append(of_codes);
  exact.truncate(0);
  exact.append(of_exact);
}

void TokenColumn::move(std::int64_t first, std::int64_t count) {
  codes.append(exact.rows(first, count, exact.dtype()));
  exact.erase(first, count);
}

std::vector<CodedLayers> coded_layers(const KvPlan& plan) {
  std::vector<CodedLayers> all;
  for (int block = 0; block < static_cast<int>(plan.coded.size()); ++block) {
    const CodedBlock& spec = plan.coded[static_cast<std::size_t>(block)];
    if (!all.empty() && all.back().first_layer == spec.first_layer) {
      ++all.back().num_blocks;
    } else {
      all.push_back({spec.first_layer, spec.num_layers, block, 1});
    }
  }
  return all;
}

CodedStore::CodedStore(const KvPlan& plan, const CodedLayers& coded_layers,
                       const StoreOptions& options, const TokenPolicy& policy)
    : layers(coded_layers) {
  if (!policy.is_full()) {
    columns.emplace_back(options.pool, at::kInt);
  }
  if (policy.has_scores()) {
    columns.emplace_back(options.pool, at::kFloat);
  }
  for (int index = 0; index < layers.num_layers; ++index) {
    exact.push_back(exact_store(plan, options));
  }
  for (int block = layers.first_block; block < layers.first_block + layers.num_blocks; ++block) {
    codes.emplace_back(options.pool, plan.coded[static_cast<std::size_t>(block)]);
  }
}

void CodedStore::append_positions(const at::Tensor& new_positions) {
  columns.front().exact.append(new_positions);
  if (columns.size() > 1) {
    scores().exact.append(at::zeros({new_positions.size(0)}, at::kFloat));
  }
}

std::int64_t CodedStore::column_bytes() const { return bytes_of(columns); }
std::int64_t CodedStore::exact_bytes() const { return bytes_of(exact); }
std::int64_t CodedStore::code_bytes() const { return bytes_of(codes); }

}  // namespace kvc
