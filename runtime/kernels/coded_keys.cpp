#include "runtime/kernels/coded_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvc {
namespace {

constexpr std::int64_t kLargest = 127 * 256 + 127;
// 4^b over the variance of a code of b bits whose range is 2.8 standard deviations to either side: between
// those of the encoder's widest codes (4) and its narrow ones (2.3 with three bits).
constexpr double kRange = 32;

// The nearest multiple of 256, in units of it.
int high_of(int integer) { return (integer + 128) >> 8; }

// For an integer, such that its sums with all codes fit in 32 bits.
float largest_integer(const TileLayout& layout) {
  std::int64_t codes = 1;
  for (int bits = 1; bits <= kWidestCode; ++bits) {
    codes += layout.coefficients[bits] * ((1 << bits) - 1);
  }
  return static_cast<float>(
      std::min(kLargest, std::numeric_limits<std::int32_t>::max() / codes - 1));
}

std::vector<int> widths_of(const TileLayout& layout) {
  std::vector<int> widths;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    widths.insert(widths.end(), static_cast<std::size_t>(layout.coefficients[bits]), bits);
  }
  return widths;
}

}  // namespace

CodedKeyRows::CodedKeyRows(const TileLayout& layout, const float* decoder, std::int64_t row_stride,
                           std::int64_t head_dim, const float* steps, const float* mean,
                           const KeyBases& bases)
    : head_dim_(head_dim), rotated_(bases.rotated), mean_(mean, mean + head_dim) {
  const std::vector<int> widths = widths_of(layout);
  const auto count = static_cast<std::int64_t>(widths.size());
  const float largest_of_all = largest_integer(layout);
  num_quads_ = (count + kQuad - 1) / kQuad;
  std::vector<int> integers(at(head_dim * count));
  // Squared errors, summed over channels: what 8 bits add, and what the codes make.
  std::vector<double> added(at(count), 0);
  double made = 0;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    const float* row = decoder + d * row_stride;
    float largest = 0;
    for (std::int64_t c = 0; c < count; ++c) {
      largest = std::max(largest, std::fabs(row[c] * steps[c]));
    }
    scale_.push_back(largest / largest_of_all);
    for (std::int64_t c = 0; c < count; ++c) {
      const double weight = double{row[c]} * steps[c];
      const int integer =
          largest == 0 ? 0 : static_cast<int>(std::nearbyint(weight / scale_.back()));
      integers[at(d * count + c)] = integer;
      const double error = double{scale_.back()} * (integer - 256 * high_of(integer));
      added[at(c)] += error * error * std::exp2(2 * widths[at(c)]) / kRange;
      made += weight * weight / 12;
    }
  }
  std::int64_t wide = count;
  for (double sum = 0;
       !rotated_ && wide > 0 && (sum += added[at(wide - 1)]) <= kAddedDistortion * made;) {
    --wide;
  }
  num_wide_quads_ = (wide + kQuad - 1) / kQuad;
  const std::int64_t padded = (head_dim + kChannels - 1) / kChannels * kChannels;
  high_.assign(at(padded * num_quads_ * kQuad), 0);
  low_.assign(at(padded * num_wide_quads_ * kQuad), 0);
  for (std::int64_t d = 0; d < head_dim; ++d) {
    double offset = 0;
    for (std::int64_t c = 0; c < count; ++c) {
      const int integer = integers[at(d * count + c)];
      const std::int64_t place = (c / kQuad * kChannels + d % kChannels) * kQuad + c % kQuad;
      const std::int64_t first = d / kChannels * kChannels;
      high_[at(first * num_quads_ * kQuad + place)] = static_cast<std::int8_t>(high_of(integer));
      if (c < num_wide()) {
        low_[at(first * num_wide_quads_ * kQuad + place)] =
            static_cast<std::int8_t>(integer - 256 * high_of(integer));
      }
      offset += double{first_level(widths[at(c)])} * this->integer(d, c);
    }
    offset_.push_back(static_cast<float>(offset * scale_[at(d)]));
  }
  for (std::vector<float>* of_channels : {&scale_, &offset_, &mean_}) {
    of_channels->resize(at(padded), 0);
  }
}

int CodedKeyRows::integer(std::int64_t channel, std::int64_t coefficient) const {
  const std::int64_t place =
      (coefficient / kQuad * kChannels + channel % kChannels) * kQuad + coefficient % kQuad;
  const std::int64_t first = channel / kChannels * kChannels;
  const int high_byte = high(first)[place];
  return 256 * high_byte + (coefficient < num_wide() ? low(first)[place] : 0);
}

}  // namespace kvc
