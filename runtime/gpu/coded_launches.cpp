// Layers of which some tokens are codes: their part of GroupLaunches.
#include "runtime/gpu/group_launches.h"

namespace kvc {

void GroupLaunches::set_coded_query(AppendRows& append) const {
  append.query_float16 = launches_.pointer<void>(scratch_.query);
  append.apart[0] = {.num_rows = launches_.pointer<std::int32_t>(cache_.num_codes()),
                     .first_rows = launches_.pointer<std::int32_t>(scratch_.first_apart[0])};
  append.sinks = narrow_size(cache_.plan().policy.sink_tokens);
}

void GroupLaunches::set_coded_stores(int layer, AppendRows& append) const {
  set_coded_query(append);
  append.rows = launches_.pointer<std::int32_t>(cache_.exact_slots());
  append.key = cache_.key_rows(layer);
  append.value = cache_.value_rows(layer);
}

const std::int32_t* GroupLaunches::first_apart(const DenseAttention& query, int segment) const {
  return query.first_rows == nullptr
             ? nullptr
             : launches_.pointer<std::int32_t>(scratch_.first_apart[segment]);
}

DevicePartials GroupLaunches::add_integers(const std::vector<StoredLayers>& layers,
                                           const DenseAttention& query, const DeviceRope& rope) {
  DenseAttention codes = query;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    codes.rows[i].key = cache_.key_codes(layers[i].key);
    codes.rows[i].value = cache_.value_codes(layers[i].value);
    codes.rows[i].raw_key = true;
  }
  codes.raw_keys.rope = rope;
  codes.first_rows = first_apart(query, 0);
  codes.first_position = narrow_size(cache_.plan().policy.sink_tokens);
  return add_rows(codes, cache_.num_codes(), 1);
}

DevicePartials GroupLaunches::add_tiles(int layer, const DenseAttention& query,
                                        const DeviceRope& rope) {
  const GpuTiles& tiles = cache_.tiles_of(layer);
  const auto store = static_cast<std::size_t>(&tiles - cache_.tiles().data());
  const CodedRanks& ranks =
      model_.coded[store].layers[static_cast<std::size_t>(layer - tiles.layers.first_layer)];
  RankAttention attention{
      .query = scratch_.query.defined() ? scratch_.query.data_ptr() : query.query,
      .element = DeviceElement::kFloat16};
  attention.tiles = tiles.blocks();
  attention.num_blocks = tiles.layers.num_blocks;
  attention.most_coefficients = narrow_size(tiles.most_coefficients());
  attention.keys = ranks.keys();
  attention.num_rows = launches_.pointer<std::int32_t>(cache_.num_codes());
  attention.first_rows = first_apart(query, 0);
  attention.first_position = narrow_size(cache_.plan().policy.sink_tokens);
  attention.sums_width = attention.keys.rank_stride;
  return add_sums(attention, query, rope, ranks.values(), 0);
}

void GroupLaunches::add_coded_attention(const std::vector<StoredLayers>& layers,
                                        const DenseAttention& exact, const DeviceRope& rope) {
  const int layer = layers.front().key;
  const bool is_plain = cache_.plan().layers[static_cast<std::size_t>(layer)] == KvSource::kPlain;
  const DevicePartials of_exact = add_rows(exact, cache_.exact_rows(), 0);
  launches_.add_combination(
      {of_exact, is_plain ? add_integers(layers, exact, rope) : add_tiles(layer, exact, rope)});
}

}  // namespace kvc
