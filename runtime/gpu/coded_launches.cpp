// Layers of which some tokens are codes: their part of GroupLaunches.
#include "runtime/gpu/group_launches.h"

namespace kvc {

void GroupLaunches::set_coded_stores(int layer, AppendRows& append) const {
  append.rows = launches_.pointer<std::int32_t>(cache_.exact_slots());
  append.key = cache_.key_rows(layer);
  append.value = cache_.value_rows(layer);
  append.query_float16 = launches_.pointer<void>(scratch_.query);
  append.num_codes = launches_.pointer<std::int32_t>(cache_.num_codes());
  append.first_codes = launches_.pointer<std::int32_t>(scratch_.first_codes);
  append.sinks = narrow_size(cache_.plan().policy.sink_tokens);
}

const std::int32_t* GroupLaunches::first_codes(const DenseAttention& query) const {
  return query.first_rows == nullptr ? nullptr
                                     : launches_.pointer<std::int32_t>(scratch_.first_codes);
}

DevicePartials GroupLaunches::add_integers(int layer, const DenseAttention& query,
                                           const DeviceRope& rope) {
  DenseAttention codes = query;
  codes.rows[0].raw_key = true;
  codes.raw_keys.rope = rope;
  codes.first_rows = first_codes(query);
  codes.first_position = narrow_size(cache_.plan().policy.sink_tokens);
  return add_dense(codes, cache_.key_codes(layer), cache_.value_codes(layer), cache_.num_codes(),
                   1);
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
  attention.first_rows = first_codes(query);
  attention.first_position = narrow_size(cache_.plan().policy.sink_tokens);
  attention.sums_width = attention.keys.rank_stride;
  return add_sums(attention, query, rope, ranks.values(), 0);
}

void GroupLaunches::add_coded_attention(int layer, const DenseAttention& query,
                                        const DeviceRope& rope) {
  const bool is_plain = cache_.plan().layers[static_cast<std::size_t>(layer)] == KvSource::kPlain;
  const DevicePartials exact =
      add_dense(query, cache_.key_rows(layer), cache_.value_rows(layer), cache_.exact_rows(), 0);
  combine({exact, is_plain ? add_integers(layer, query, rope) : add_tiles(layer, query, rope)});
}

}  // namespace kvc
