#include "runtime/gpu/coded_ranks.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "model/fused_kv.h"
#include "model/tensor_memory.h"

namespace kvc {
namespace {

using Blocks = std::vector<const CodedBlockFactors*>;

at::Tensor copied(const at::Tensor& numbers, at::ScalarType type, at::Device device) {
  return numbers.to(type).contiguous().to(device);
}

// Blocks of a layer that hold its keys, or its values.
Blocks blocks_of(const CodedFactors& factors, const KvPlan& plan, const CodedLayers& layers,
                 CodedParts part) {
  Blocks blocks;
  for (int i = layers.first_block; i < layers.first_block + layers.num_blocks; ++i) {
    const auto block = static_cast<std::size_t>(i);
    const CodedBlock& spec = plan.coded[block];
    if (part == CodedParts::kKeys ? spec.has_keys() : spec.has_values()) {
      blocks.push_back(&factors.blocks[block]);
    }
  }
  return blocks;
}

// Those of F times the steps.
CodedRanks::HeadRows rows_of(const Blocks& blocks, const KvPlan& plan, int index, CodedParts part) {
  std::int64_t most = 0;
  for (const CodedBlockFactors* block : blocks) {
    most = std::max(most, block->steps.size(0));
  }
  const bool keys = part == CodedParts::kKeys;
  std::vector<at::Tensor> projections, means;
  for (const CodedBlockFactors* block : blocks) {
    const at::Tensor rows =
        (keys ? block->key_rows(index) : block->value_rows(index)) * block->steps;
    projections.push_back(at::constant_pad_nd(rows, {0, coded_width(most) - rows.size(1)}));
    means.push_back(keys ? block->key_mean[index] : block->value_mean[index]);
  }
  return {at::cat(projections).view({plan.num_kv_heads, plan.head_dim, coded_width(most)}),
          at::cat(means).view({plan.num_kv_heads, plan.head_dim, 1})};
}

// Where codes_first_token: what the first token's keys or values have besides, [num_kv_heads, head_dim].
at::Tensor first_row(const Blocks& blocks, const KvPlan& plan, int index, CodedParts part) {
  std::vector<at::Tensor> rows;
  for (const CodedBlockFactors* block : blocks) {
    const at::Tensor& own = part == CodedParts::kKeys ? block->first_key : block->first_value;
    rows.push_back(own[index].flatten());
  }
  return at::cat(rows).view({plan.num_kv_heads, plan.head_dim});
}

// A layer's KV heads whose codes meet the query; none where keys are rebuilt.
std::vector<const CodedKeyRows*> met_heads(const Blocks& blocks) {
  std::vector<const CodedKeyRows*> heads;
  for (const CodedBlockFactors* block : blocks) {
    if (block->keys.front().form() != KeyForm::kBases) {
      heads.push_back(&block->keys.front());
    }
  }
  return heads;
}

// The largest number of each row, or 1. [.., 1]
at::Tensor scales_of(const at::Tensor& rows) {
  const at::Tensor largest = rows.abs().amax(-1, /*keepdim=*/true);
  return at::where(largest > 0, largest, at::ones_like(largest));
}

}  // namespace

std::int64_t coded_width(std::int64_t most_coefficients) {
  return std::max<std::int64_t>(kScaledChannels, round_up(most_coefficients, kScaledChannels));
}

CodedRanks::CodedRanks(const CodedFactors& factors, const KvPlan& plan, const CodedLayers& layers,
                       int index, const ModelConfig& config, const RopeTables& rope,
                       at::Device device)
    : num_kv_heads_(plan.num_kv_heads), head_dim_(plan.head_dim) {
  for (int i = layers.first_block; i < layers.first_block + layers.num_blocks; ++i) {
    parts_.push_back(plan.coded[static_cast<std::size_t>(i)].part);
  }
  const Blocks of_keys = blocks_of(factors, plan, layers, CodedParts::kKeys);
  const Blocks of_values = blocks_of(factors, plan, layers, CodedParts::kValues);
  const HeadRows value = rows_of(of_values, plan, index, CodedParts::kValues);
  const at::Tensor value_scale = scales_of(value.projection);
  value_ = copied(value.projection / value_scale, at::kHalf, device);
  value_scale_ = copied(value_scale, at::kFloat, device);
  value_offset_ = copied(value.mean, at::kFloat, device);
  if (codes_first_token(plan)) {
    first_key_ = copied(first_row(of_keys, plan, index, CodedParts::kKeys), at::kFloat, device);
    first_value_ =
        copied(first_row(of_values, plan, index, CodedParts::kValues), at::kFloat, device);
  }
  const int layer = layers.first_layer + index;
  if (const std::vector<const CodedKeyRows*> heads = met_heads(of_keys); !heads.empty()) {
    key_rows_ = GpuKeyRows(heads, channel_pairs(config, layer), device);
  } else {
    set_rebuilt_keys(key_places(config, rope, layer, KeptChannels()).rebuilt,
                     rows_of(of_keys, plan, index, CodedParts::kKeys), device);
  }
}

void CodedRanks::set_rebuilt_keys(const PairPlaces& pairs, const HeadRows& key, at::Device device) {
  const at::Tensor places = pairs.channels[0];  // every head's
  const at::Tensor exists = (places >= 0).to(at::kFloat).view({1, -1, 1});
  const auto by_pairs = [&](const at::Tensor& rows) {
    return rows.index_select(1, places.clamp_min(0)) * exists;
  };
  const at::Tensor there = (places >= 0).nonzero().squeeze(1);
  key_order_ = there.index_select(0, places.index_select(0, there).argsort()).to(device);
  const at::Tensor key_scale = scales_of(key.projection);
  channels_ = pairs.channels.to(device, at::kInt);
  angles_ = pairs.angles.to(device, at::kInt);
  key_ = copied(by_pairs(key.projection / key_scale), at::kHalf, device);
  key_scale_ = copied(by_pairs(key_scale), at::kFloat, device);
  key_offset_ = copied(by_pairs(key.mean), at::kFloat, device);
}

RebuiltKeys CodedRanks::keys() const {
  return {.pairs = {.num_pairs = static_cast<int>(angles_.size(1)),
                    .channels = channels_.const_data_ptr<std::int32_t>(),
                    .angles = angles_.const_data_ptr<std::int32_t>(),
                    .offset = key_offset_.const_data_ptr<float>()},
          .projection = key_.const_data_ptr(),
          .rank_stride = static_cast<int>(key_.size(2)),
          .scale = key_scale_.const_data_ptr<float>()};
}

ProjectValues CodedRanks::values() const {
  const int width = static_cast<int>(value_.size(2));
  return {.projection = value_.const_data_ptr(),
          .element = DeviceElement::kFloat16,
          .rank = width,
          .rank_stride = width,
          .scale = value_scale_.const_data_ptr<float>(),
          .offset = value_offset_.const_data_ptr<float>(),
          .num_kv_heads = static_cast<int>(num_kv_heads_),
          .head_dim = static_cast<int>(head_dim_)};
}

at::Tensor CodedRanks::product(const std::vector<at::Tensor>& levels, const at::Tensor& rows,
                               const at::Tensor& scale, const at::Tensor& offset) const {
  const auto heads = num_kv_heads_ / static_cast<std::int64_t>(levels.size());
  std::vector<at::Tensor> parts;
  for (std::size_t block = 0; block < levels.size(); ++block) {
    const at::Tensor own =
        rows.narrow(0, static_cast<std::int64_t>(block) * heads, heads).flatten(0, 1);
    parts.push_back(
        at::linear(levels[block], own.narrow(1, 0, levels[block].size(1)).to(at::kFloat)));
  }
  return at::cat(parts, 1).view({-1, num_kv_heads_, rows.size(1)}) * scale.squeeze(2) +
         offset.squeeze(2);
}

DecodedTokens CodedRanks::decode(const std::vector<at::Tensor>& levels, const TurnKeys& turn_back,
                                 bool begins_text) const {
  std::vector<at::Tensor> of_keys, of_values;
  for (std::size_t block = 0; block < levels.size(); ++block) {
    if (parts_[block] != CodedParts::kValues) {
      of_keys.push_back(levels[block]);
    }
    if (parts_[block] != CodedParts::kKeys) {
      of_values.push_back(levels[block]);
    }
  }
  const DecodedTokens decoded{keys_of(of_keys, turn_back),
                              product(of_values, value_, value_scale_, value_offset_)};
  if (begins_text && first_key_.defined()) {
    decoded.key[0] += first_key_;
    decoded.value[0] += first_value_;
  }
  return decoded;
}

at::Tensor CodedRanks::keys_of(const std::vector<at::Tensor>& levels,
                               const TurnKeys& turn_back) const {
  if (key_rows_.are_met()) {
    return key_rows_.decode(levels, turn_back);
  }
  return product(levels, key_, key_scale_, key_offset_).index_select(2, key_order_);
}

std::int64_t CodedRanks::bytes() const {
  std::int64_t bytes = key_rows_.bytes();
  for (const at::Tensor& tensor :
       {channels_, angles_, key_order_, key_, value_, key_scale_, key_offset_, value_scale_,
        value_offset_, first_key_, first_value_}) {
    bytes += tensor_bytes(tensor);
  }
  return bytes;
}

std::int64_t GpuCodedFactors::bytes() const {
  std::int64_t bytes = encoder.bytes();
  for (const CodedRanks& layer : layers) {
    bytes += layer.bytes();
  }
  return bytes;
}

std::vector<GpuCodedFactors> to_gpu(const CodedFactors& factors, const KvPlan& plan,
                                    const ModelConfig& config, const RopeTables& rope,
                                    at::Device device) {
  std::vector<GpuCodedFactors> all;
  for (const CodedLayers& layers : coded_layers(plan)) {
    GpuCodedFactors& of_layers = all.emplace_back(
        GpuCodedFactors{GpuCodedEncoder(plan, layers, factors.blocks, device), {}});
    for (int index = 0; index < layers.num_layers; ++index) {
      of_layers.layers.emplace_back(factors, plan, layers, index, config, rope, device);
    }
  }
  return all;
}

}  // namespace kvc
