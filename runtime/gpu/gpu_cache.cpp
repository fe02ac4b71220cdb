#include "runtime/gpu/gpu_cache.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace kvc {

GpuCache::GpuCache(const KvPlan& plan, at::ScalarType dtype, KvDtype kv_dtype, at::Device device,
                   std::int64_t page_tokens, const std::vector<std::int64_t>& capacities,
                   const GpuPolicy& policy, bool drops_tokens)
    : plan_(plan),
      dtype_(dtype),
      kv_dtype_(kv_dtype),
      page_tokens_(page_tokens),
      capacities_(capacities),
      codes_(capacities.size(), 0),
      exact_(capacities.size(), 0),
      num_codes_(at::zeros({num_sequences()}, at::TensorOptions(at::kInt).device(device))),
      pending_(num_codes_.options(), num_sequences()),
      exact_part_(num_codes_.options(), num_sequences()) {
  KVC_CHECK(page_tokens % kScaledRows == 0,
            "--page-tokens {}: a GPU requires a multiple of {} tokens", page_tokens, kScaledRows);
  if (drops_tokens) {
    first_rows_ = at::zeros({plan.num_layers(), num_sequences()}, num_codes_.options());
    host_first_rows_.assign(plan.layers.size(), std::vector<std::int64_t>(capacities.size(), 0));
  }
  GpuPages pages;
  pages.device = device;
  pages.page_tokens = page_tokens;
  pages.most_rows = capacities;
  page_bytes_ = pages.bytes;
  if (!policy.policy.is_full()) {
    kept_ = std::make_unique<GpuKept>(plan, policy, dtype, kv_dtype, pages);
  }
  for (const KvSource source : kept_ ? std::vector<KvSource>{} : plan.layers) {
    add_layer(source, pages);
  }
  for (const CodedLayers& layers : coded_layers(plan)) {
    tiles_.emplace_back(plan, layers, pages, dtype);
  }
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    groups_.emplace_back(plan, group, dtype, pages);
  }
}

void GpuCache::add_layer(KvSource source, const GpuPages& pages) {
  const bool is_coded = source == KvSource::kCoded;
  row_index_.push_back(source == KvSource::kPlain || is_coded ? static_cast<int>(layers_.size())
                                                              : -1);
  if (row_index_.back() < 0) {
    return;
  }
  const std::int64_t width = plan_.kv_dim();
  Layer rows{GpuRows(pages, width, dtype_), GpuRows(pages, width, dtype_), is_coded};
  if (has_integers() && !is_coded) {
    const DeviceElement codes = code_element(kv_dtype_);
    rows.key_codes.emplace(pages, width, codes, /*per_channel=*/true);
    rows.value_codes.emplace(pages, width, codes, /*per_channel=*/false);
  }
  for (std::size_t sequence = 0; sequence < capacities_.size() && !drops_tokens(); ++sequence) {
    reserve_plain(rows, sequence);
  }
  layers_.push_back(std::move(rows));
}

// For a layer without codes, whose pages are there for all tokens.
void GpuCache::reserve_plain(Layer& layer, std::size_t sequence) {
  if (!has_exact_part(layer)) {
    layer.key.reserve(sequence, capacities_[sequence]);
    layer.value.reserve(sequence, capacities_[sequence]);
  }
}

void GpuCache::grow(std::size_t sequence, std::int64_t capacity) {
  KVC_CHECK(kept_ == nullptr, "a cache with a token policy cannot grow on a GPU");
  if (capacity <= capacities_[sequence]) {
    return;
  }
  capacities_[sequence] = capacity;
  for (Layer& layer : layers_) {
    for (GpuRows* rows : {&layer.key, &layer.value}) {
      rows->allow(capacity);
    }
    for (auto* codes : {&layer.key_codes, &layer.value_codes}) {
      if (*codes) {
        (*codes)->allow(capacity);
      }
    }
    reserve_plain(layer, sequence);
  }
  for (GpuTiles& tiles : tiles_) {
    tiles.allow(sequence, tokens_in_blocks(plan_, capacity));
  }
  for (GpuGroup& group : groups_) {
    group.allow(sequence, capacity);
  }
}

void GpuCache::write(int layer, std::size_t sequence, std::int64_t first, const at::Tensor& key,
                     const at::Tensor& value) {
  Layer& rows = layers_[index(layer)];
  rows.key.write(sequence, first, key);
  rows.value.write(sequence, first, value);
}

at::Tensor GpuCache::keys(int layer, std::size_t sequence, std::int64_t first,
                          std::int64_t count) const {
  return layers_[index(layer)].key.read_heads(sequence, first, count, plan_.head_dim);
}

at::Tensor GpuCache::values(int layer, std::size_t sequence, std::int64_t first,
                            std::int64_t count) const {
  return layers_[index(layer)].value.read_heads(sequence, first, count, plan_.head_dim);
}

void GpuCache::write_last(int layer, std::size_t sequence, std::int64_t num_tokens,
                          const at::Tensor& key, const at::Tensor& value) {
  Layer& rows = layers_[index(layer)];
  const std::int64_t first = num_tokens - key.size(0);
  for (GpuRows* store : {&rows.key, &rows.value}) {
    store->reserve_from(sequence, first, capacities_[sequence] - first);
  }
  write(layer, sequence, first, key, value);
  host_first_rows_[index(layer)][sequence] = first;
  first_rows_[layer][static_cast<std::int64_t>(sequence)].fill_(first);
}

std::int32_t* GpuCache::first_rows(int layer) const {
  return static_cast<std::int32_t*>(first_rows_.data_ptr()) + layer * num_sequences();
}

void GpuCache::copy(std::size_t from, std::size_t to, std::int64_t count) {
  for (Layer& layer : layers_) {
    for (GpuRows* rows : {&layer.key, &layer.value}) {
      has_exact_part(layer) || drops_tokens() ? rows->copy(from, to)
                                              : rows->write(to, 0, rows->read(from, 0, count));
    }
    for (auto* codes : {&layer.key_codes, &layer.value_codes}) {
      if (*codes) {
        (*codes)->copy(from, to);
      }
    }
  }
  if (kept_) {
    kept_->copy(from, to);
  }
  for (std::size_t layer = 0; layer < host_first_rows_.size(); ++layer) {
    host_first_rows_[layer][to] = host_first_rows_[layer][from];
    first_rows_[static_cast<std::int64_t>(layer)][static_cast<std::int64_t>(to)].fill_(
        host_first_rows_[layer][to]);
  }
  for (GpuTiles& tiles : tiles_) {
    tiles.copy(from, to);
  }
  codes_[to] = codes_[from];
  exact_[to] = exact_[from];
  for (GpuGroup& group : groups_) {
    group.copy(from, to);
  }
  for (const at::Tensor& counts :
       {pending_.rows, pending_.slots, exact_part_.rows, exact_part_.slots, num_codes_}) {
    counts[static_cast<std::int64_t>(to)].copy_(counts[static_cast<std::int64_t>(from)]);
  }
}

std::int64_t GpuCache::most_bases() const {
  std::size_t most = 0;
  for (const GpuGroup& group : groups_) {
    most = std::max(most, group.basis_ranges().size());
  }
  return static_cast<std::int64_t>(most);
}

void GpuCache::begin_prompt(std::size_t sequence, std::int64_t num_tokens) {
  exact_[sequence] += num_tokens;
  for (Layer& layer : layers_) {
    if (has_exact_part(layer)) {
      layer.key.reserve(sequence, exact_[sequence]);
      layer.value.reserve(sequence, exact_[sequence]);
    }
    reserve_plain(layer, sequence);
  }
  for (GpuGroup& group : groups_) {
    group.begin_prompt(sequence, num_tokens);
  }
}

CodeRows GpuCache::codes(int layer, std::size_t sequence) const {
  const Layer& rows = layers_[index(layer)];
  return {rows.key_codes->table(sequence), rows.value_codes->table(sequence)};
}

CodeRows GpuCache::reserve_codes(int layer, std::size_t sequence) {
  Layer& rows = layers_[index(layer)];
  const std::int64_t most = quantised_tokens(plan_, capacities_[sequence], kv_dtype_);
  rows.key_codes->reserve(sequence, most);
  rows.value_codes->reserve(sequence, most);
  return codes(layer, sequence);
}

const GpuTiles& GpuCache::tiles_of(int layer) const {
  return *std::find_if(tiles_.begin(), tiles_.end(), [&](const GpuTiles& tiles) {
    return layer < tiles.layers.first_layer + tiles.layers.num_layers;
  });
}

void GpuCache::drop_exact(int layer, std::size_t sequence, std::int64_t count) {
  const std::int64_t left = exact_[sequence] - count,
                     sinks = std::min(left, plan_.compression.sink_tokens);
  for (GpuRows* rows : {&layers_[index(layer)].key, &layers_[index(layer)].value}) {
    rows->replace(sequence,
                  at::cat({rows->read(sequence, 0, sinks),
                           rows->read(sequence, sinks + count, left - sinks)}),
                  exact_capacity(plan_, capacities_[sequence]));
  }
}

void GpuCache::count_codes(std::size_t sequence, std::int64_t count) {
  codes_[sequence] += count;
  exact_[sequence] -= count;
  num_codes_[static_cast<std::int64_t>(sequence)].fill_(codes_[sequence]);
}

void GpuCache::add_token() {
  for (std::int64_t& exact : exact_) {
    ++exact;
  }
  for (GpuGroup& group : groups_) {
    for (std::size_t sequence = 0; sequence < capacities_.size() && group.decides(); ++sequence) {
      group.add_pending(sequence, 1);
    }
  }
}

void GpuCache::StepRows::set(std::size_t sequence, std::int64_t count) {
  const auto index = static_cast<std::int64_t>(sequence);
  rows[index].fill_(count);
  slots[index].fill_(count - 1);
}

}  // namespace kvc
