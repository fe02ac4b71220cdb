#include "runtime/compression/expansion.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "runtime/compression/group_view.h"
#include "runtime/compression/key_forms.h"
#include "runtime/compression/reconstruction.h"
#include "runtime/store/row_store.h"

namespace kvc {
namespace {

at::Tensor stored_key(const Decoder& decoder, int layer, const Reconstruction& reconstruction,
                      const at::Tensor& key, const at::Tensor& positions) {
  if (stores_raw_keys(decoder.config(), layer)) {
    return key;
  }
  return reconstruction.is_principal
             ? decoder.rope().rotate(layer, key, positions)
             : finish_key(decoder.layer(layer), decoder.rope(), layer, key, positions);
}

// The latents behind those that `expanded` holds already, up to rows.last.
void extend(const GroupView& group, int index, const RowStore& latents,
            const PositionList& positions, const MergedLatents& rows, KeyValueStore& expanded) {
  const Decoder& decoder = group.decoder;
  const int layer = group.layer(index);
  const at::Tensor all_positions = positions.tensor();
  for (std::int64_t first = expanded.num_exact(); first < rows.last; first = expanded.num_exact()) {
    const std::int64_t count = std::min(kChunkTokens, rows.last - first);
    const KeyValue rebuilt = reconstruct(decoder, decoder.layer(layer), group.factors, rows.layer,
                                         latents.rows(first, count, decoder.dtype()));
    expanded.append(
        stored_key(decoder, layer, rows.layer, rebuilt.key, all_positions.narrow(0, first, count)),
        rebuilt.value);
  }
}

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
  const GroupView view{decoder, cache.plan(), group, factors, store};
  const std::int64_t num_merged = std::min(rows, store.merged_positions().size());
  const std::int64_t num_unmerged =
      store.keeps_latents() ? std::min(rows - num_merged, store.unmerged_positions().size()) : 0;
  for (int index = 0; index < spec.num_layers; ++index) {
    const auto at_index = static_cast<std::size_t>(index);
    if (num_merged > expansion.merged[at_index].num_exact()) {
      for (MergedLatents& part : merged_latents(factors, store, index, decoder.dtype())) {
        part.last = std::min(num_merged, part.last);
        extend(view, index, store.merged(), store.merged_positions(), part,
               expansion.merged[at_index]);
      }
    }
    if (num_unmerged > 0) {
      extend(view, index, store.unmerged_latent(index), store.unmerged_positions(),
             {0, num_unmerged, factors.layers[at_index]}, expansion.unmerged[at_index]);
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
