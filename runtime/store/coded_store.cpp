#include "runtime/store/coded_store.h"

#include <numeric>

#include "runtime/store/store_bytes.h"

namespace kvc {
std::vector<CodedLayers> coded_layers(const KvPlan& plan) {
  std::vector<CodedLayers> all;
  for (int block = 0; block < static_cast<int>(plan.coded.size()); ++block) {
    const CodedBlock& spec = plan.coded[static_cast<std::size_t>(block)];
    if (spec.head > 0) {
      ++all.back().num_blocks;
    } else {
      all.push_back({spec.first_layer, spec.num_layers, block, 1});
    }
  }
  return all;
}

CodedStore::CodedStore(const KvPlan& plan, const CodedLayers& coded_layers,
                       const StoreOptions& options, const CodedColumns& columns)
    : layers(coded_layers) {
  if (columns.positions) {
    positions.emplace(options.pool, at::kInt);
  }
  if (columns.scores) {
    scores.emplace(options.pool, at::kFloat);
  }
  for (int index = 0; index < layers.num_layers; ++index) {
    exact.push_back(exact_store(plan, options));
  }
  for (int block = layers.first_block; block < layers.first_block + layers.num_blocks; ++block) {
    codes.emplace_back(options.pool, plan.coded[static_cast<std::size_t>(block)]);
  }
}

std::int64_t CodedStore::column_bytes() const {
  return (positions ? positions->bytes() : 0) + (scores ? scores->bytes() : 0);
}

void CodedStore::append_positions(const at::Tensor& new_positions) {
  positions->exact.append(new_positions);
  if (scores) {
    scores->exact.append(at::zeros({new_positions.size(0)}, at::kFloat));
  }
}

std::int64_t CodedStore::exact_bytes() const { return bytes_of(exact); }
std::int64_t CodedStore::code_bytes() const { return bytes_of(codes); }

}  // namespace kvc
