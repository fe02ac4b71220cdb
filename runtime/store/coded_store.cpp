#include "runtime/store/coded_store.h"

#include <numeric>

namespace kvc {
namespace {

template <class Store>
std::int64_t bytes_of(const std::vector<Store>& stores) {
  return std::accumulate(
      stores.begin(), stores.end(), std::int64_t{0},
      [](std::int64_t bytes, const Store& store) { return bytes + store.bytes(); });
}

}  // namespace

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
                       const StoreOptions& options)
    : layers(coded_layers) {
  for (int index = 0; index < layers.num_layers; ++index) {
    exact.push_back(exact_store(plan, options));
  }
  for (int block = layers.first_block; block < layers.first_block + layers.num_blocks; ++block) {
    codes.emplace_back(options.pool, plan.coded[static_cast<std::size_t>(block)]);
  }
}

std::int64_t CodedStore::exact_bytes() const { return bytes_of(exact); }
std::int64_t CodedStore::code_bytes() const { return bytes_of(codes); }

}  // namespace kvc
