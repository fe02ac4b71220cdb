#include <algorithm>

#include "runtime/gpu/gpu_cache.h"

namespace kvc {

std::int64_t exact_capacity(const KvPlan& plan, std::int64_t capacity) {
  return std::min(capacity, plan.compression.exact_tokens() + kQuantisedTokens);
}

std::int64_t coded_layer_bytes(const KvPlan& plan, std::int64_t capacity, KvDtype dtype,
                               std::int64_t page_tokens) {
  return plain_layer_bytes(plan, quantised_tokens(plan, capacity, dtype),
                           exact_capacity(plan, capacity), dtype, page_tokens);
}

std::int64_t coded_store_bytes(const KvPlan& plan, const CodedLayers& layers, std::int64_t capacity,
                               std::int64_t page_tokens) {
  std::int64_t bytes = layers.num_layers * plain_layer_bytes(plan, exact_capacity(plan, capacity),
                                                             KvDtype::kFloat16, page_tokens);
  for (int i = layers.first_block; i < layers.first_block + layers.num_blocks; ++i) {
    bytes += block_code_bytes(plan.coded[static_cast<std::size_t>(i)],
                              tokens_in_blocks(plan, capacity), page_tokens);
  }
  return bytes;
}

KvBytes GpuCache::bytes(std::size_t sequence) const {
  KvBytes bytes;
  for (const Layer& layer : layers_) {
    (layer.is_coded ? bytes.pending : bytes.plain) +=
        layer.key.bytes(sequence) + layer.value.bytes(sequence);
    if (layer.key_codes) {
      bytes.plain += layer.key_codes->bytes(sequence) + layer.value_codes->bytes(sequence);
    }
  }
  bytes.kept = kept_ ? kept_->bytes(sequence) : 0;
  for (const GpuTiles& tiles : tiles_) {
    bytes.coded += tiles.bytes(sequence);
  }
  for (const GpuGroup& group : groups_) {
    const KvBytes own = group.bytes(sequence);
    bytes.merged += own.merged;
    bytes.unmerged += own.unmerged;
    bytes.pending += own.pending;
  }
  return bytes;
}

}  // namespace kvc
