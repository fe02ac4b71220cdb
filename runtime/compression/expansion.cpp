#include "runtime/compression/expansion.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "runtime/attention/cache_segments.h"
#include "runtime/compression/chunk_tokens.h"
#include "runtime/compression/merged_latents.h"

namespace kvc {
namespace {

// One layer's latents of one segment.
struct LatentRows {
  const RowStore& rows;
  const at::Tensor& positions;
  const Reconstruction& layer;
};

class GroupExpander {
 public:
  GroupExpander(const Decoder& decoder, const GroupFactors& factors, int layer)
      : decoder_(decoder), factors_(factors), layer_(layer) {}

  // The latents behind those that `expanded` holds already, up to `last`.
  void extend(const LatentRows& latents, std::int64_t last, KeyValueStore& expanded) const {
    for (std::int64_t first = expanded.num_exact(); first < last; first = expanded.num_exact()) {
      const std::int64_t count = std::min(kChunkTokens, last - first);
      const LayerWeights& weights = decoder_.layer(layer_);
      const KeyValue rebuilt = reconstruct(decoder_, weights, factors_, latents.layer,
                                           latents.rows.rows(first, count, decoder_.dtype()));
      const at::Tensor positions = latents.positions.narrow(0, first, count);
      expanded.append(stored_key(weights, latents.layer, rebuilt.key, positions), rebuilt.value);
    }
  }

 private:
  at::Tensor stored_key(const LayerWeights& weights, const Reconstruction& layer,
                        const at::Tensor& key, const at::Tensor& positions) const {
    if (stores_raw_keys(decoder_.config(), layer_)) {
      return key;
    }
    return layer.is_principal ? decoder_.rope().rotate(layer_, key, positions)
                              : finish_key(weights, decoder_.rope(), layer_, key, positions);
  }

  const Decoder& decoder_;
  const GroupFactors& factors_;
  int layer_;
};

std::vector<KeyValueStore> empty_layers(const KvPlan& plan, int num_layers,
                                        const StoreOptions& options) {
  std::vector<KeyValueStore> layers;
  for (int index = 0; index < num_layers; ++index) {
    layers.push_back(exact_store(plan, options));
  }
  return layers;
}

}  // namespace

void expand_group(const Decoder& decoder, const LatentFactors& all_factors,
                  const StoreOptions& options, int group, std::int64_t rows, KvCache& cache) {
  const LatentGroup& spec = cache.plan().groups[static_cast<std::size_t>(group)];
  const GroupFactors& factors = all_factors.groups[static_cast<std::size_t>(group)];
  LatentStore& store = cache.group(group);
  if (!store.expansion()) {
    store.expansion() =
        Expansion{empty_layers(cache.plan(), spec.num_layers, options),
                  empty_layers(cache.plan(), store.keeps_latents() ? spec.num_layers : 0, options)};
  }
  Expansion& expansion = *store.expansion();
  const at::Tensor merged = store.merged_positions().tensor();
  const at::Tensor unmerged = store.unmerged_positions().tensor();
  const std::int64_t num_merged = std::min(rows, merged.size(0));
  const std::int64_t num_unmerged =
      store.keeps_latents() ? std::min(rows - num_merged, unmerged.size(0)) : 0;
  for (int index = 0; index < spec.num_layers; ++index) {
    const auto at_index = static_cast<std::size_t>(index);
    const GroupExpander expander(decoder, factors, spec.first_layer + index);
    if (num_merged > expansion.merged[at_index].num_exact()) {
      for (const MergedLatents& part : merged_latents(factors, store, index, decoder.dtype())) {
        expander.extend({store.merged(), merged, part.layer}, std::min(num_merged, part.last),
                        expansion.merged[at_index]);
      }
    }
    if (num_unmerged > 0) {
      expander.extend({store.unmerged_latent(index), unmerged, factors.layers[at_index]},
                      num_unmerged, expansion.unmerged[at_index]);
    }
  }
}

void shrink_expansion(std::int64_t rows, LatentStore& store) {
  if (rows <= 0 || !store.expansion()) {
    store.expansion().reset();
    return;
  }
  const auto cut = [](std::vector<KeyValueStore>& layers, std::int64_t kept) {
    for (KeyValueStore& layer : layers) {
      const std::int64_t count = layer.num_exact();
      if (count > kept) {
        layer.key.erase(kept, count - kept);
        layer.value.erase(kept, count - kept);
      }
    }
  };
  Expansion& expansion = *store.expansion();
  const std::int64_t merged = expansion.merged.front().num_exact();
  cut(expansion.unmerged, std::max<std::int64_t>(0, rows - merged));
  cut(expansion.merged, rows);
}

std::int64_t expanded_rows(const LatentStore& store) {
  const auto rows = [](const std::vector<KeyValueStore>& layers) {
    return layers.empty() ? 0 : layers.front().num_exact();
  };
  return store.expansion() ? rows(store.expansion()->merged) + rows(store.expansion()->unmerged)
                           : 0;
}

std::int64_t latent_rows_of(const KvPlan& plan, int group, const GroupTokens& tokens) {
  if (plan.own_widths) {
    return 0;
  }
  return tokens.merged + (keeps_latents(plan, group) ? tokens.unmerged : 0);
}

std::int64_t expansion_row_bytes(const KvPlan& plan, int group, KvDtype dtype) {
  return 2 * plan.groups[static_cast<std::size_t>(group)].num_layers * plan.kv_dim() *
         bytes_per_element(dtype);
}

std::int64_t expansion_bytes(const KvPlan& plan, int group, const GroupTokens& tokens,
                             KvDtype dtype, std::int64_t page_tokens) {
  if (plan.own_widths || plan.selective) {
    return 0;
  }
  const std::int64_t rows =
      round_up(tokens.merged, page_tokens) +
      (keeps_latents(plan, group) ? round_up(tokens.unmerged, page_tokens) : 0);
  return rows * expansion_row_bytes(plan, group, dtype);
}

}  // namespace kvc
