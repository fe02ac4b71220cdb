#include "tests/runtime/kernels/cuda/case_tiles.h"

#include <algorithm>
#include <cmath>

#include "tests/runtime/kernels/cuda/case_inputs.h"

namespace kvc::testing {
namespace {

// What a coefficient is coded as under a step, by definition.
float level_of(float z, float step, int bits) {
  const auto half = static_cast<float>(1 << (bits - 1));
  return std::min(std::max(-half, std::floor(z / step)), half - 1);
}

double squared_error(const std::vector<int>& widths, const float* z,
                     const std::vector<float>& steps, float gain) {
  double error = 0;
  for (std::size_t c = 0; c < widths.size(); ++c) {
    const float step = steps[c] * gain;
    const double difference = z[c] - (level_of(z[c], step, widths[c]) + 0.5) * step;
    error += difference * difference;
  }
  return error;
}

}  // namespace

TileLayout case_layout(bool gain) {
  TileLayout layout;
  const std::int64_t counts[] = {0, 4, 0, 2, 5, 3, 1, 1, 2};
  std::copy(std::begin(counts), std::end(counts), layout.coefficients);
  layout.gain = gain;
  return layout;
}

std::vector<float> case_steps(std::int64_t count, unsigned seed) {
  std::vector<float> steps = case_numbers(count, seed);
  for (float& step : steps) {
    step = 0.05f + std::fabs(step) * 0.3f;
  }
  return steps;
}

std::string first_difference(const std::string& what, const std::vector<std::uint8_t>& actual,
                             const std::vector<std::uint8_t>& expected) {
  const auto found = std::mismatch(actual.begin(), actual.end(), expected.begin(), expected.end());
  if (found.first == actual.end() && found.second == expected.end()) {
    return {};
  }
  return what + ": byte " + std::to_string(found.first - actual.begin()) + " of " +
         std::to_string(actual.size()) + " differs from the expected " +
         std::to_string(expected.size());
}

std::string check_tile(const TileLayout& layout, const float* z, std::size_t num_tokens,
                       const std::vector<float>& steps, const std::vector<std::uint8_t>& tile,
                       std::vector<float>& values) {
  const std::vector<int> widths = widths_of(layout);
  const std::size_t count = widths.size();
  std::vector<std::uint8_t> gains(kTileTokens), codes(count * kTileTokens),
      expected(static_cast<std::size_t>(layout.bytes()));
  for (std::size_t token = 0; token < num_tokens; ++token) {
    const float* own = z + token * count;
    gains[token] = kUnitGain;
    if (layout.gain) {
      gains[token] = tile[static_cast<std::size_t>(layout.code_bytes()) + token];
      double least = INFINITY;
      for (const float gain : kGains) {
        least = std::min(least, squared_error(widths, own, steps, gain));
      }
      if (gains[token] >= kNumGains ||
          squared_error(widths, own, steps, kGains[gains[token]]) > least * (1 + 1e-5)) {
        return "the gain of token " + std::to_string(token) + " is not the best";
      }
    }
    for (std::size_t c = 0; c < count; ++c) {
      const float step = steps[c] * kGains[gains[token]];
      const float level = level_of(own[c], step, widths[c]);
      codes[c * kTileTokens + token] =
          static_cast<std::uint8_t>(level + static_cast<float>(1 << (widths[c] - 1)));
      values.push_back((level + 0.5f) * kGains[gains[token]]);
    }
  }
  pack_tile_reference(layout, codes.data(), gains.data(), expected.data());
  return first_difference("tile", tile, expected);
}

}  // namespace kvc::testing
