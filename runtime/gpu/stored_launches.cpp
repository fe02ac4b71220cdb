// Plain layers, coded ones, and fused layers, which read them.
#include "runtime/gpu/layer_launches.h"

namespace kvc {
namespace {

class PlainLaunches : public LayerLaunches {
 public:
  explicit PlainLaunches(StepLaunches& launches) : launches_(launches), cache_(launches.cache) {}

  bool makes_keys(int layer) const override { return launches_.model.fused_of(layer) == nullptr; }

  void set_stores(int layer, AppendRows& append) const override {
    if (makes_keys(layer)) {
      append.key = cache_.key_rows(layer);
      append.value = cache_.value_rows(layer);
    }
  }

  void add_attention(int layer, const DenseAttention& query, const DeviceRope&) override {
    DenseAttention attention = over_rows(layer, query);
    if (cache_.drops_tokens()) {
      attention.first_rows = cache_.first_rows(layer);
    }
    launches_.add(attention);
    launches_.add_combination({attention.partials});
  }

 protected:
  // Over the rows of the layer, or of those that it is fused of.
  DenseAttention over_rows(int layer, DenseAttention attention) {
    const std::vector<StoredLayers> sources = launches_.model.sources_of(layer);
    attention.num_sources = narrow_size(static_cast<std::int64_t>(sources.size()));
    for (std::size_t i = 0; i < sources.size(); ++i) {
      attention.rows[i] = {.key = cache_.key_rows(sources[i].key),
                           .value = cache_.value_rows(sources[i].value)};
    }
    if (const FusedFactors* factors = launches_.model.fused_of(layer)) {
      const float* key = launches_.numbers(factors->weights.key.weight);
      const float* value = launches_.numbers(factors->weights.value.weight);
      for (std::size_t i = 0; i < sources.size(); ++i) {
        const auto behind = static_cast<std::int64_t>(i) * launches_.config.kv_dim();
        attention.rows[i].key_factor = key + behind;
        attention.rows[i].value_factor = value + behind;
      }
    }
    return attention;
  }

  StepLaunches& launches_;
  const GpuCache& cache_;
};

// Exact tokens, and codes behind the first ones.
class CodedLaunches : public PlainLaunches {
 public:
  CodedLaunches(StepLaunches& launches, const std::shared_ptr<Segments>& segments)
      : PlainLaunches(launches), segments_(segments) {
    if (!cache_.tiles().empty() && launches.model.dtype != at::kHalf) {
      query_float16_ = launches.zeros({launches.num_sequences, launches.config.q_dim()}, at::kHalf);
    }
  }

  void set_stores(int layer, AppendRows& append) const override {
    PlainLaunches::set_stores(layer, append);
    if (makes_keys(layer)) {
      append.rows = launches_.pointer<std::int32_t>(cache_.exact_slots());
    }
    append.query_float16 = launches_.pointer<void>(query_float16_);
    append.apart[0] = {.num_rows = launches_.pointer<std::int32_t>(cache_.num_codes()),
                       .first_rows = segments_->first_apart(0),
                       .very_first = reads_first_apart(layer) ? segments_->very_first() : nullptr};
    append.sinks = narrow_size(cache_.plan().compression.sink_tokens);
  }

  void add_attention(int layer, const DenseAttention& query, const DeviceRope& rope) override {
    const DenseAttention exact = over_rows(layer, query);
    std::vector<DevicePartials> parts{segments_->add_exact(exact, cache_.exact_rows())};
    parts.push_back(has_tiles(layer)
                        ? add_tiles(layer, exact, rope)
                        : add_integers(launches_.model.sources_of(layer), exact, rope));
    if (reads_first_apart(layer)) {
      parts.push_back(add_first(layer, exact));
    }
    launches_.add_combination(parts);
  }

 private:
  // Otherwise a plain layer of integers, or one that is fused of such.
  bool has_tiles(int layer) const {
    return cache_.plan().layers[static_cast<std::size_t>(layer)] == KvSource::kCoded;
  }
  bool reads_first_apart(int layer) const {
    return has_tiles(layer) && codes_first_token(cache_.plan());
  }

  DevicePartials add_first(int layer, DenseAttention attention) {
    const GpuTiles& tiles = cache_.tiles_of(layer);
    const int index = layer - tiles.layers.first_layer;
    attention.rows[0] = {.key = tiles.first_keys(index), .value = tiles.first_values(index)};
    attention.first_rows = nullptr;
    return segments_->add_first(attention);
  }

  // The first code that attention reads, or null: all.
  const std::int32_t* first_code(int layer, const DenseAttention& query) const {
    return reads_first_apart(layer) ? segments_->first_apart(0) : segments_->first_apart(query, 0);
  }

  DevicePartials add_integers(const std::vector<StoredLayers>& layers, DenseAttention codes,
                              const DeviceRope& rope) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      codes.rows[i].key = cache_.key_codes(layers[i].key);
      codes.rows[i].value = cache_.value_codes(layers[i].value);
      codes.rows[i].raw_key = true;
    }
    codes.raw_keys.rope = rope;
    codes.first_rows = segments_->first_apart(codes, 0);
    codes.first_position = narrow_size(cache_.plan().compression.sink_tokens);
    return segments_->add_others(codes, cache_.num_codes());
  }

  DevicePartials add_tiles(int layer, const DenseAttention& query, const DeviceRope& rope) {
    const GpuTiles& tiles = cache_.tiles_of(layer);
    const auto store = static_cast<std::size_t>(&tiles - cache_.tiles().data());
    const CodedRanks& ranks =
        launches_.model.coded[store]
            .layers[static_cast<std::size_t>(layer - tiles.layers.first_layer)];
    if (ranks.key_rows().are_met()) {
      return add_met(layer, ranks, query, rope);
    }
    RankAttention attention{
        .query = query_float16_.defined() ? query_float16_.data_ptr() : query.query,
        .element = DeviceElement::kFloat16};
    attention.key_codes = tiles.codes(CodedParts::kKeys);
    attention.value_codes = tiles.codes(CodedParts::kValues);
    attention.keys = ranks.keys();
    attention.num_rows = launches_.pointer<std::int32_t>(cache_.num_codes());
    attention.first_rows = first_code(layer, query);
    attention.first_position = narrow_size(cache_.plan().compression.sink_tokens);
    const ProjectValues values = ranks.values();
    attention.sums_width = values.rank_stride;
    return segments_->add_sums(attention, query, rope, values, 0);
  }

  // Codes of keys meet the query, in the launch that sums values where every KV head has a block of them.
  DevicePartials add_met(int layer, const CodedRanks& ranks, const DenseAttention& query,
                         const DeviceRope& rope) {
    const GpuTiles& tiles = cache_.tiles_of(layer);
    const RankCodes values = tiles.codes(CodedParts::kValues);
    CodedAttention attention = ranks.key_rows().attention();
    attention.query = query.query;
    attention.element = query.element;
    attention.keys = tiles.codes(CodedParts::kKeys).tiles;
    attention.values = values.num_blocks == query.num_kv_heads ? values.tiles : nullptr;
    attention.most_key_bytes = narrow_size(tiles.most_tile_bytes(CodedParts::kKeys));
    attention.most_value_bytes = narrow_size(tiles.most_tile_bytes(CodedParts::kValues));
    attention.num_rows = launches_.pointer<std::int32_t>(cache_.num_codes());
    attention.first_rows = first_code(layer, query);
    attention.first_position = narrow_size(cache_.plan().compression.sink_tokens);
    const ProjectValues projection = ranks.values();
    attention.sums_width = projection.rank_stride;
    return segments_->add_codes(attention, values, query, rope, projection, 0);
  }

  std::shared_ptr<Segments> segments_;
  // In float16, [num_sequences, q_dim], where the model computes in another type.
  at::Tensor query_float16_;
};

}  // namespace

std::shared_ptr<LayerLaunches> plain_launches(StepLaunches& launches) {
  return std::make_shared<PlainLaunches>(launches);
}

std::shared_ptr<LayerLaunches> coded_launches(StepLaunches& launches,
                                              const std::shared_ptr<Segments>& segments) {
  return std::make_shared<CodedLaunches>(launches, segments);
}

}  // namespace kvc
