#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/fused_ops.h"

namespace kvc {
namespace {

// llama3: long waves are slowed down by `factor`, short ones kept, those between interpolated.
float llama3_frequency(const RopeConfig& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor);
  const auto original = static_cast<float>(rope.original_max_position_embeddings);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
  if (wavelength > original / low) {
    return frequency / factor;
  }
  if (wavelength < original / high) {
    return frequency;
  }
  const float smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

float scaled_frequency(const RopeConfig& rope, float frequency) {
  switch (rope.type) {
    case RopeType::kDefault:
      return frequency;
    case RopeType::kLinear:
      return frequency / static_cast<float>(rope.factor);
    case RopeType::kLlama3:
      return llama3_frequency(rope, frequency);
  }
  return frequency;
}

// [x1 cos - x2 sin, x2 cos + x1 sin], both halves rounded as transformers rounds them.
at::Tensor rotate_halves(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  return at::cat({first * cos - second * sin, second * cos + first * sin}, -1);
}

}  // namespace

// In float32 and in transformers' order of operations: a last-bit difference grows with the
// position.
at::Tensor rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor frequencies = at::pow(rope.theta, exponents).reciprocal();
  float* values = frequencies.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < frequencies.numel(); ++i) {
    values[i] = scaled_frequency(rope, values[i]);
  }
  return frequencies;
}

RopeTable::RopeTable(const ModelConfig& config, at::ScalarType dtype)
    : inverse_frequencies_(rope_inverse_frequencies(config.rope, config.head_dim)), dtype_(dtype) {
  constexpr std::int64_t kFirstPositions = 1024;
  grow(std::min(config.max_position_embeddings, kFirstPositions));
}

void RopeTable::grow(std::int64_t num_positions) const {
  const std::int64_t known = cos_.defined() ? cos_.size(0) : 0;
  if (num_positions <= known) {
    return;
  }
  const at::Tensor positions = at::arange(std::max(num_positions, 2 * known), at::kFloat);
  const at::Tensor angles = at::outer(positions, inverse_frequencies_);
  cos_ = angles.cos();
  sin_ = angles.sin();
}

const RopeTable::Rows& RopeTable::rows(const at::Tensor& positions) const {
  const std::uint32_t version = positions.is_inference() ? 0 : positions._version();
  const auto holds = [&](const Rows& rows) {
    return rows.positions.is_same(positions) && rows.version == version;
  };
  if (!holds(recent_[0])) {
    std::swap(recent_[0], recent_[1]);
  }
  if (!holds(recent_[0])) {
    grow(positions.numel() == 0 ? 0 : positions.max().item<std::int64_t>() + 1);
    recent_[0] = {positions, version, cos_.index_select(0, positions).unsqueeze(1).to(dtype_),
                  sin_.index_select(0, positions).unsqueeze(1).to(dtype_)};
  }
  return recent_[0];
}

at::Tensor RopeTable::rotate(const at::Tensor& x, const at::Tensor& positions) const {
  const Rows& found = rows(positions);
  if (x.dim() == 3 && can_fuse(x) && x.scalar_type() == dtype_) {
    return fused_rotate(x, found.cos, found.sin);
  }
  return rotate_halves(x, found.cos, found.sin);
}

at::Tensor RopeTable::unrotate(const at::Tensor& x, const at::Tensor& positions) const {
  grow(positions.numel() == 0 ? 0 : positions.max().item<std::int64_t>() + 1);
  return rotate_halves(x.to(at::kFloat), cos_.index_select(0, positions).unsqueeze(1),
                       -sin_.index_select(0, positions).unsqueeze(1));
}

}  // namespace kvc
