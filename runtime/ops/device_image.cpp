#include "runtime/ops/device_image.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "runtime/kernels/cuda/attention_limits.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/device_layout.h"
#include "runtime/kernels/cuda/paged_tokens.h"

namespace kvc {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

int padded(std::int64_t coefficients) {
  return static_cast<int>(std::max<std::int64_t>(kScaledRows, round_up(coefficients, kScaledRows)));
}

HeadBlocks blocks_of(const std::vector<PagedBlock>& blocks, std::int64_t num_kv_heads,
                     bool values) {
  HeadBlocks found{&blocks, {}, num_kv_heads, values};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (values ? blocks[i].has_values() : blocks[i].has_keys()) {
      found.numbers.push_back(static_cast<int>(i));
    }
  }
  std::sort(found.numbers.begin(), found.numbers.end(),
            [&](int a, int b) { return blocks[at(a)].first_head < blocks[at(b)].first_head; });
  return found;
}

bool share_heads(const HeadBlocks& all) {
  return std::all_of(all.numbers.begin(), all.numbers.end(), [&](int number) {
    return (*all.blocks)[at(number)].num_heads * static_cast<std::int64_t>(all.numbers.size()) ==
           all.num_kv_heads;
  });
}

}  // namespace

DeviceImage::DeviceImage(const PagedCodes::Shape& shape, const std::vector<PagedBlock>& all) {
  const HeadBlocks keys = blocks_of(all, shape.num_kv_heads, false);
  const HeadBlocks values = blocks_of(all, shape.num_kv_heads, true);
  const KeyForm form = key_form(keys);
  are_met = form != KeyForm::kBases;
  are_turned = form == KeyForm::kPairs;
  num_key_blocks = static_cast<int>(keys.numbers.size());
  num_value_blocks = static_cast<int>(values.numbers.size());
  if (are_met && num_key_blocks != shape.num_kv_heads) {
    refusal = "keys of several KV heads in one block of the forms pairs and rotated";
  } else if (!share_heads(keys) || !share_heads(values)) {
    refusal = "blocks of different numbers of KV heads";
  } else if (shape.num_layers > kMostPagedLayers) {
    refusal = "more than " + std::to_string(kMostPagedLayers) + " layers that are coded together";
  } else if (are_met ? !meets_heads(shape.head_dim)
                     : shape.head_dim % 2 != 0 || rebuilt_pairs(shape.head_dim) == 0) {
    refusal = "heads of " + std::to_string(shape.head_dim) + " channels";
  } else if (are_met && shape.num_heads / shape.num_kv_heads > most_met_heads(shape.head_dim)) {
    refusal = std::to_string(shape.num_heads / shape.num_kv_heads) +
              " query heads on each KV head of the forms pairs and rotated";
  }
  if (!refusal.empty()) {
    return;
  }
  add_blocks(all);
  std::vector<std::int32_t> numbers(keys.numbers.begin(), keys.numbers.end());
  numbers.insert(numbers.end(), values.numbers.begin(), values.numbers.end());
  order = factors.add(numbers);
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    add_layer(keys, values, layer, shape.rope.num_pairs);
  }
}

void DeviceImage::add_blocks(const std::vector<PagedBlock>& all) {
  std::vector<DeviceBlock> described;
  for (const PagedBlock& block : all) {
    const auto k = static_cast<int>(block.layout.num_coefficients());
    const auto of_tile = static_cast<int>(block.layout.bytes());
    DeviceBlock to;
    to.tiles = device_layout(block.layout);
    to.page_offset = tile_bytes;
    to.num_heads = static_cast<int>(block.num_heads);
    to.first_head = static_cast<int>(block.first_head);
    to.has_keys = block.has_keys();
    to.has_values = block.has_values();
    to.rotated = block.bases.rotated;
    to.channels = static_cast<int>(block.channels());
    to.first_coefficient = num_coefficients;
    to.encoder = factors.add(encoder_columns(block));
    to.decoder = factors.add(decoder_columns(block));
    to.mean = factors.add(block.mean, at(block.channels()));
    to.first = block.first == nullptr ? 0 : factors.add(first_mean(block));
    to.steps = factors.add(block.steps, at(k));
    described.push_back(to);
    has_first = has_first || block.first != nullptr;
    tile_bytes += of_tile;
    num_coefficients += k;
    most_coefficients = std::max(most_coefficients, k);
    if (block.has_keys()) {
      key_width = std::max(key_width, padded(k));
      most_key_bytes = std::max(most_key_bytes, of_tile);
    }
    if (block.has_values()) {
      value_width = std::max(value_width, padded(k));
      most_value_bytes = std::max(most_value_bytes, of_tile);
    }
  }
  num_blocks = static_cast<int>(described.size());
  blocks = factors.add(described);
}

void DeviceImage::add_layer(const HeadBlocks& keys, const HeadBlocks& values, std::int64_t layer,
                            std::int64_t num_pairs) {
  Layer to;
  std::vector<HeadPlace> places;
  for (const HeadBlocks* part : {&keys, &values}) {
    for (std::int64_t head = 0; head < part->num_kv_heads; ++head) {
      places.push_back({part->number_of(head), static_cast<int>(part->channel(layer, head))});
    }
  }
  to.places = factors.add(places);
  const FactorRows of_values = value_rows(values, layer, value_width);
  to.value = factors.add(of_values.rows);
  to.value_scale = factors.add(of_values.scales);
  to.value_offset = factors.add(of_values.means);
  if (are_met) {
    const MetKeyRows rows = met_key_rows(keys, layer, num_pairs);
    to.num_code_rows = static_cast<int>(rows.codes.count);
    to.num_mean_rows = static_cast<int>(rows.means.count);
    to.code_channels = factors.add(rows.codes.channels);
    to.code_weights = factors.add(rows.codes.weights);
    to.code_angles = factors.add(rows.codes.angles);
    to.mean_channels = factors.add(rows.means.channels);
    to.mean_weights = factors.add(rows.means.weights);
    to.mean_angles = factors.add(rows.means.angles);
  } else {
    const RebuiltKeyRows rows = rebuilt_key_rows(keys, layer, num_pairs, key_width);
    to.num_code_rows = rows.num_pairs;
    to.code_channels = factors.add(rows.channels);
    to.code_angles = factors.add(rows.angles);
    to.key = factors.add(rows.rows.rows);
    to.key_scale = factors.add(rows.rows.scales);
    to.key_offset = factors.add(rows.rows.means);
  }
  layers.push_back(to);
}

}  // namespace kvc
