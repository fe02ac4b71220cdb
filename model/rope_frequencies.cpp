// In float32 and in transformers' order of operations: a last-bit difference grows with the position.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/rope.h"

namespace kvc {
namespace {

// Long waves are slowed down by `factor`, short ones kept, those between interpolated.
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

// theta^(2i / rotary_dim)
at::Tensor periods(const RopeConfig& rope, const at::Scalar& theta) {
  const at::Tensor exponents = at::arange(0, rope.rotary_dim, 2, at::kLong).to(at::kFloat) /
                               static_cast<double>(rope.rotary_dim);
  return at::pow(theta, exponents);
}

// theta (f L / M - (f - 1))^(d / (d - 2)), for texts longer than M
double stretched_theta(const RopeConfig& rope, std::int64_t length) {
  if (static_cast<double>(length) <= rope.max_position_embeddings) {
    return rope.theta;
  }
  const auto d = static_cast<double>(rope.rotary_dim);
  const at::Tensor ratio =
      at::scalar_tensor(length, at::kLong) * rope.factor / rope.max_position_embeddings;
  return (at::pow(ratio - (rope.factor - 1), d / (d - 2)) * rope.theta).item<float>();
}

// The channel pair that turns `rotations` times within the original length.
double correction_pair(const RopeConfig& rope, double rotations) {
  return static_cast<double>(rope.rotary_dim) *
         std::log(rope.original_max_position_embeddings / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

// Pairs before the ramp are kept, those behind it divided by the factor.
at::Tensor yarn_frequencies(const RopeConfig& rope) {
  double low = correction_pair(rope, rope.beta_fast), high = correction_pair(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim - 1));
  high += low == high ? 0.001 : 0;
  const at::Tensor ramp =
      ((at::arange(rope.rotary_dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor wave = periods(rope, rope.theta), kept = 1 - ramp;
  return (wave * rope.factor).reciprocal() * (1 - kept) + wave.reciprocal() * kept;
}

}  // namespace

at::Tensor rope_inverse_frequencies(const RopeConfig& rope, std::int64_t length) {
  switch (rope.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      return periods(rope, rope.theta).reciprocal() / rope.factor;
    case RopeType::kDynamic:
      return periods(rope, stretched_theta(rope, length)).reciprocal();
    case RopeType::kYarn:
      return yarn_frequencies(rope);
    case RopeType::kLongRope: {
      const bool is_long = static_cast<double>(length) > rope.original_max_position_embeddings;
      const at::Tensor factors =
          at::tensor(is_long ? rope.long_factors : rope.short_factors, at::kFloat);
      return (factors * periods(rope, rope.theta)).reciprocal();
    }
    case RopeType::kLlama3: {
      const at::Tensor frequencies = periods(rope, rope.theta).reciprocal();
      float* values = frequencies.mutable_data_ptr<float>();
      for (std::int64_t i = 0; i < frequencies.numel(); ++i) {
        values[i] = llama3_frequency(rope, values[i]);
      }
      return frequencies;
    }
  }
  return periods(rope, rope.theta).reciprocal();
}

}  // namespace kvc
