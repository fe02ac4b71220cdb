#include "runtime/ops/device_codes.h"

#include <algorithm>

#include "runtime/ops/device_sums.h"

namespace kvc {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

template <class T>
const T* in_image(const DeviceCodes::Memory& memory, std::int64_t place) {
  return reinterpret_cast<const T*>(memory.image + place);
}

}  // namespace

DeviceCodes::DeviceCodes(const PagedCodes::Shape& shape, const std::vector<PagedBlock>& blocks)
    : shape_(shape), num_pairs_(shape.rope.num_pairs), image_(shape, blocks) {
  shape_.rope.cos = shape_.rope.sin = nullptr;
}

PagedBlocks DeviceCodes::described(const Memory& memory) const {
  return {
      .image = memory.image,
      .blocks = in_image<DeviceBlock>(memory, image_.blocks),
      .num_blocks = image_.num_blocks,
      .num_coefficients = image_.num_coefficients,
      .most_coefficients = image_.most_coefficients,
      .num_layers = static_cast<int>(shape_.num_layers),
      .num_kv_heads = static_cast<int>(shape_.num_kv_heads),
      .head_dim = static_cast<int>(shape_.head_dim),
      .rope = {.cos = memory.cos, .sin = memory.sin, .num_pairs = static_cast<int>(num_pairs_)}};
}

DeviceProgram DeviceCodes::store(const Memory& memory, const std::int64_t* slots,
                                 const std::int64_t* positions, int count,
                                 const std::vector<EngineRows>& keys,
                                 const std::vector<EngineRows>& values,
                                 DeviceScratch& scratch) const {
  EncodeTokens encode{
      .of = described(memory),
      .element = memory.element,
      .positions = positions,
      .num_positions = shape_.num_positions,
      .count = count,
      .z = scratch.take<float>(static_cast<std::int64_t>(count) * image_.num_coefficients)};
  std::copy(keys.begin(), keys.end(), encode.keys);
  std::copy(values.begin(), values.end(), encode.values);
  std::fill_n(encode.ropes, shape_.num_layers, encode.of.rope);
  const StoreCodes store{
      .of = encode.of, .pages = memory.pages, .slots = slots, .count = count, .z = encode.z};
  return {encode, store};
}

DeviceProgram DeviceCodes::read(const Memory& memory, const std::int32_t* page_numbers, int first,
                                int count, std::int64_t layer, void* keys, void* values) const {
  return {ReadTokens{.of = described(memory),
                     .pages = memory.pages,
                     .page_numbers = page_numbers,
                     .first = first,
                     .count = count,
                     .places = in_image<HeadPlace>(memory, image_.layers[at(layer)].places),
                     .element = memory.element,
                     .keys = keys,
                     .values = values}};
}

template <class Attention>
void DeviceCodes::set_shape(const Memory& memory, const Sequences& sequences,
                            Attention& attention) const {
  attention.num_sequences = sequences.count;
  attention.num_heads = static_cast<int>(shape_.num_heads);
  attention.num_kv_heads = static_cast<int>(shape_.num_kv_heads);
  attention.head_dim = static_cast<int>(shape_.head_dim);
  attention.scale = shape_.scale;
  attention.softcap = shape_.softcap;
  attention.cos = memory.cos;
  attention.sin = memory.sin;
  attention.num_angles = static_cast<int>(num_pairs_);
  attention.max_tiles = (sequences.most_tokens + kScaledRows - 1) / kScaledRows;
  attention.sums_width = image_.value_width;
}

DevicePartials DeviceCodes::add_sums(const Memory& memory, const Sequences& sequences,
                                     const DeviceImage::Layer& layer, const void* query,
                                     const PlacePages& places, int multiprocessors,
                                     DeviceScratch& scratch, DeviceProgram& program) const {
  const int num_keys = image_.num_key_blocks;
  const int num_values = image_.num_value_blocks;
  const RankCodes key_codes{places.tiles, num_keys, image_.key_width};
  const RankCodes value_codes{places.tiles + num_keys, num_values, image_.value_width};
  const bool at_once = image_.are_met && num_values == shape_.num_kv_heads;
  RankAttention sums;
  set_shape(memory, sequences, sums);
  take_sums(multiprocessors, num_values, sequences.most_tokens, !at_once, scratch, sums);
  sums.query = query;
  sums.element = DeviceElement::kFloat16;
  sums.value_codes = value_codes;
  sums.num_rows = places.num_rows;
  sums.first_rows = places.first_rows;
  if (!image_.are_met) {
    sums.key_codes = key_codes;
    sums.keys = {.pairs = {.num_pairs = layer.num_code_rows,
                           .channels = in_image<std::int32_t>(memory, layer.code_channels),
                           .angles = in_image<std::int32_t>(memory, layer.code_angles),
                           .offset = in_image<float>(memory, layer.key_offset)},
                 .projection = in_image<std::uint16_t>(memory, layer.key),
                 .rank_stride = image_.key_width,
                 .scale = in_image<float>(memory, layer.key_scale)};
    program.emplace_back(sums);
    return sums.partials;
  }
  CodedAttention met;
  set_shape(memory, sequences, met);
  met.query = query;
  met.element = memory.element;
  met.keys = key_codes.tiles;
  met.values = at_once ? value_codes.tiles : nullptr;
  met.most_key_bytes = image_.most_key_bytes;
  met.most_value_bytes = image_.most_value_bytes;
  met.turned = image_.are_turned;
  met.codes = {layer.num_code_rows, in_image<std::int32_t>(memory, layer.code_channels),
               in_image<float>(memory, layer.code_weights),
               in_image<std::int32_t>(memory, layer.code_angles)};
  met.means = {layer.num_mean_rows, in_image<std::int32_t>(memory, layer.mean_channels),
               in_image<float>(memory, layer.mean_weights),
               in_image<std::int32_t>(memory, layer.mean_angles)};
  met.num_rows = places.num_rows;
  met.first_rows = places.first_rows;
  met.partials = sums.partials;
  met.weights = sums.weights;
  met.tile_max = sums.tile_max;
  met.tile_sum = sums.tile_sum;
  program.emplace_back(met);
  if (!at_once) {
    program.emplace_back(sums);
  }
  return sums.partials;
}

DeviceProgram DeviceCodes::attend(const Memory& memory, const Sequences& sequences,
                                  std::int64_t layer, const void* query, void* output,
                                  int multiprocessors, DeviceScratch& scratch) const {
  const DeviceImage::Layer& of = image_.layers[at(layer)];
  const auto heads = static_cast<int>(shape_.num_heads);
  const auto head_dim = static_cast<int>(shape_.head_dim);
  const std::int64_t count = sequences.count, rows = count * heads;
  const CodedSpan span{static_cast<int>(shape_.window), sequences.exact_tiles, image_.has_first,
                       sequences.most_tokens};
  const int page_tokens = memory.pages.page_tiles * kScaledRows;
  PlacePages places{.of = described(memory),
                    .pages = memory.pages,
                    .span = span,
                    .page_numbers = sequences.pages,
                    .page_stride = sequences.stride,
                    .tokens = sequences.tokens,
                    .num_sequences = sequences.count,
                    .most_pages = (sequences.most_tokens + page_tokens - 1) / page_tokens,
                    .order = in_image<std::int32_t>(memory, image_.order),
                    .num_tiles = image_.num_key_blocks + image_.num_value_blocks};
  places.tiles = scratch.take<DeviceTiles>(places.num_tiles);
  places.addresses = scratch.take<const void*>(places.num_tiles * count * places.most_pages);
  places.num_rows = scratch.take<std::int32_t>(count);
  places.first_rows = scratch.take<std::int32_t>(count);
  DeviceProgram program{places};

  AttendOpen open{.span = span,
                  .tokens = sequences.tokens,
                  .numbers = sequences.open_numbers,
                  .keys = sequences.open_keys,
                  .values = sequences.open_values,
                  .num_tiles = sequences.num_open_tiles,
                  .query = query,
                  .element = memory.element,
                  .num_sequences = sequences.count,
                  .num_heads = heads,
                  .num_kv_heads = static_cast<int>(shape_.num_kv_heads),
                  .head_dim = head_dim,
                  .scale = shape_.scale,
                  .softcap = shape_.softcap};
  open.partials = take_partials(open.num_parts(), rows, head_dim, scratch);
  if (image_.has_first) {
    const std::int64_t channels = count * shape_.num_kv_heads * head_dim;
    auto* keys = scratch.take<std::uint16_t>(channels);
    auto* values = scratch.take<std::uint16_t>(channels);
    program.emplace_back(ReadTokens{.of = places.of,
                                    .pages = memory.pages,
                                    .page_numbers = sequences.pages,
                                    .page_stride = sequences.stride,
                                    .num_sequences = sequences.count,
                                    .first = 0,
                                    .count = 1,
                                    .places = in_image<HeadPlace>(memory, of.places),
                                    .element = memory.element,
                                    .keys = keys,
                                    .values = values});
    open.first_keys = keys;
    open.first_values = values;
  }
  const void* of_codes = query;
  if (!image_.are_met && memory.element != DeviceElement::kFloat16) {
    open.query_float16 = scratch.take<std::uint16_t>(rows * head_dim);
    of_codes = open.query_float16;
  }
  program.emplace_back(open);

  const DevicePartials parts =
      add_sums(memory, sequences, of, of_codes, places, multiprocessors, scratch, program);
  const ProjectValues values{.projection = in_image<std::uint16_t>(memory, of.value),
                             .element = DeviceElement::kFloat16,
                             .rank = image_.value_width,
                             .rank_stride = image_.value_width,
                             .scale = in_image<float>(memory, of.value_scale),
                             .offset = in_image<float>(memory, of.value_offset),
                             .num_sequences = sequences.count,
                             .num_heads = heads,
                             .num_kv_heads = open.num_kv_heads,
                             .head_dim = head_dim};
  const DevicePartials coded = add_values(parts, image_.value_width, values, scratch, program);
  CombinePartials all{.sources = {coded, open.partials},
                      .num_sources = 2,
                      .num_sequences = sequences.count,
                      .num_heads = heads,
                      .width = head_dim,
                      .output = output,
                      .element = memory.element};
  program.emplace_back(all);
  return program;
}

}  // namespace kvc
