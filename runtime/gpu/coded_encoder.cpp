#include "runtime/gpu/coded_encoder.h"

#include <algorithm>

#include "runtime/kernels/cuda/device_layout.h"

namespace kvc {

GpuCodedEncoder::GpuCodedEncoder(const KvPlan& plan, const CodedLayers& layers,
                                 const std::vector<CodedBlockFactors>& factors, at::Device device) {
  blocks_.num_layers = layers.num_layers;
  blocks_.num_kv_heads = static_cast<int>(plan.num_kv_heads);
  blocks_.head_dim = static_cast<int>(plan.head_dim);
  PagedImage image;
  for (int i = layers.first_block; i < layers.first_block + layers.num_blocks; ++i) {
    const auto block = static_cast<std::size_t>(i);
    described_.push_back(add_block(plan.coded[block], factors[block], image));
  }
  blocks_.num_blocks = layers.num_blocks;
  const std::int64_t place = image.add(described_);
  image_ = at::tensor(image.bytes(), at::kByte).to(device);
  blocks_.image = image_.const_data_ptr<std::uint8_t>();
  blocks_.blocks = reinterpret_cast<const DeviceBlock*>(blocks_.image + place);
}

DeviceBlock GpuCodedEncoder::add_block(const CodedBlock& spec, const CodedBlockFactors& factors,
                                       PagedImage& image) {
  const auto add = [&](const at::Tensor& numbers) {
    const at::Tensor bytes = numbers.contiguous().flatten().view(at::kByte);
    return image.add(bytes.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel()));
  };
  DeviceBlock block;
  block.tiles = device_layout(tile_layout(spec));
  block.num_heads = spec.head < 0 ? blocks_.num_kv_heads : 1;
  block.first_head = std::max(spec.head, 0);
  block.has_keys = spec.has_keys();
  block.has_values = spec.has_values();
  block.rotated = spec.rotated;
  block.channels = static_cast<int>(factors.mean.size(0));
  block.first_coefficient = blocks_.num_coefficients;
  block.encoder_float16 = factors.encoder.scalar_type() == at::kHalf;
  block.encoder = add(factors.encoder.t().to(block.encoder_float16 ? at::kHalf : at::kFloat));
  block.mean = add(factors.mean.to(at::kFloat));
  if (factors.first_mean.defined()) {
    block.first = add(factors.first_mean.to(at::kFloat));
  }
  block.steps = add(factors.steps.to(at::kFloat));
  blocks_.num_coefficients += block.tiles.num_coefficients;
  blocks_.most_coefficients = std::max(blocks_.most_coefficients, block.tiles.num_coefficients);
  return block;
}

at::Tensor GpuCodedEncoder::steps(std::size_t block) const {
  const DeviceBlock& of = described_[block];
  return image_
      .narrow(0, of.steps, of.tiles.num_coefficients * static_cast<std::int64_t>(sizeof(float)))
      .view(at::kFloat);
}

}  // namespace kvc
