#include "runtime/gpu/coded_ranks.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "model/tensor_memory.h"
#include "runtime/gpu/key_places.h"

namespace kvc {
namespace {

// Rows of all heads, [num_kv_heads, head_dim, width] and [num_kv_heads, head_dim, 1] float32.
struct HeadRows {
  at::Tensor projection, mean;
};

// Those of F times the steps; `kind`: 0 keys, 1 values.
HeadRows rows_of(const CodedFactors& factors, const KvPlan& plan, const CodedLayers& layers,
                 int index, int kind, std::int64_t width) {
  std::vector<at::Tensor> projections, means;
  for (int i = 0; i < layers.num_blocks; ++i) {
    const CodedBlockFactors& block =
        factors.blocks[static_cast<std::size_t>(layers.first_block + i)];
    const at::Tensor rows =
        (kind == 0 ? block.key_rows(index) : block.value_rows(index)) * block.steps;
    projections.push_back(at::constant_pad_nd(rows, {0, width - rows.size(1)}));
    means.push_back(kind == 0 ? block.key_mean[index] : block.value_mean[index]);
  }
  return {at::cat(projections).view({plan.num_kv_heads, plan.head_dim, width}),
          at::cat(means).view({plan.num_kv_heads, plan.head_dim, 1})};
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
  std::int64_t most = 0;
  for (int i = layers.first_block; i < layers.first_block + layers.num_blocks; ++i) {
    most = std::max(most, plan.coded[static_cast<std::size_t>(i)].num_coefficients());
  }
  const PairPlaces pairs =
      key_places(config, rope, layers.first_layer + index, KeptChannels()).rebuilt;
  const at::Tensor places = pairs.channels[0];  // every head's
  const at::Tensor exists = (places >= 0).to(at::kFloat).view({1, -1, 1});
  const auto by_pairs = [&](const at::Tensor& rows) {
    return rows.index_select(1, places.clamp_min(0)) * exists;
  };
  const auto on_device = [&](const at::Tensor& numbers, at::ScalarType type) {
    return numbers.to(type).contiguous().to(device);
  };
  const HeadRows key = rows_of(factors, plan, layers, index, 0, coded_width(most));
  const HeadRows value = rows_of(factors, plan, layers, index, 1, coded_width(most));
  const at::Tensor key_scale = scales_of(key.projection), value_scale = scales_of(value.projection);
  channels_ = pairs.channels.to(device, at::kInt);
  angles_ = pairs.angles.to(device, at::kInt);
  key_ = on_device(by_pairs(key.projection / key_scale), at::kHalf);
  key_scale_ = on_device(by_pairs(key_scale), at::kFloat);
  key_offset_ = on_device(by_pairs(key.mean), at::kFloat);
  value_ = on_device(value.projection / value_scale, at::kHalf);
  value_scale_ = on_device(value_scale, at::kFloat);
  value_offset_ = on_device(value.mean, at::kFloat);
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

DecodedTokens CodedRanks::decode(const std::vector<at::Tensor>& levels) const {
  const at::Tensor places = channels_[0].cpu(),  // every head's
      there = (places >= 0).nonzero().squeeze(1);
  const at::Tensor order = there.index_select(0, places.index_select(0, there).argsort());
  return {product(levels, key_, key_scale_, key_offset_).index_select(2, order.to(key_.device())),
          product(levels, value_, value_scale_, value_offset_)};
}

std::int64_t CodedRanks::bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor :
       {channels_, angles_, key_, value_, key_scale_, key_offset_, value_scale_, value_offset_}) {
    bytes += tensor_bytes(tensor);
  }
  return bytes;
}

std::int64_t GpuCodedFactors::bytes() const {
  std::int64_t bytes = 0;
  for (const CodedBlockFactors& block : blocks) {
    bytes += tensor_bytes(block.encoder) + tensor_bytes(block.mean) + tensor_bytes(block.steps);
  }
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
    GpuCodedFactors& of_layers = all.emplace_back();
    for (int i = layers.first_block; i < layers.first_block + layers.num_blocks; ++i) {
      const CodedBlockFactors& block = factors.blocks[static_cast<std::size_t>(i)];
      of_layers.blocks.push_back({.encoder = block.encoder.to(device),
                                  .mean = block.mean.to(device),
                                  .key_mean = {},
                                  .value_mean = {},
                                  .value_decoder = {},
                                  .steps = block.steps.to(device),
                                  .first_levels = {},
                                  .keys = {}});
    }
    for (int index = 0; index < layers.num_layers; ++index) {
      of_layers.layers.emplace_back(factors, plan, layers, index, config, rope, device);
    }
  }
  return all;
}

}  // namespace kvc
