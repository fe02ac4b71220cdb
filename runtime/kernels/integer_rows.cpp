#include "runtime/kernels/integer_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvc {
namespace {

constexpr std::int64_t kLargest = 127 * 256 + 127;
// 4^b over the variance of a code of b bits whose range is 2.8 standard deviations to either side: between
// those of the encoder's widest codes (4) and its narrow ones (2.3 with three bits).
constexpr float kRange = 32;

// The nearest multiple of 256, in units of it.
int high_of(int integer) { return (integer + 128) >> 8; }

// Takes numbers below 2^22.
int nearest(float x) {
  constexpr float kWhole = 0x1.8p23f;  // floats around it are whole
  return static_cast<int>((x + kWhole) - kWhole);
}

// For an integer, such that its sums with all codes fit in 32 bits.
float largest_integer(const TileLayout& layout) {
  std::int64_t codes = 1;
  for (int bits = 1; bits <= kWidestCode; ++bits) {
    codes += layout.coefficients[bits] * ((1 << bits) - 1);
  }
  return static_cast<float>(
      std::min(kLargest, std::numeric_limits<std::int32_t>::max() / codes - 1));
}

float largest_of(const float* weights, std::int64_t count) {
  constexpr std::int64_t kTogether = 8;  // that do not wait for each other
  float largest[kTogether] = {};
  for (std::int64_t c = 0; c < count; ++c) {
    largest[c % kTogether] = std::max(largest[c % kTogether], std::fabs(weights[c]));
  }
  return *std::max_element(largest, largest + kTogether);
}

// One for each of the coefficients, which are ascending.
std::vector<int> widths_of(const TileLayout& layout,
                           const std::vector<std::int32_t>& coefficients) {
  std::vector<int> widths;
  int bits = kWidestCode;
  std::int64_t end = layout.coefficients[bits];
  for (const std::int32_t c : coefficients) {
    while (c >= end) {
      end += layout.coefficients[--bits];
    }
    widths.push_back(bits);
  }
  return widths;
}

}  // namespace

IntegerRows::IntegerRows(const TileLayout& layout, std::vector<std::int32_t> coefficients,
                         const float* weights, std::int64_t num_rows, double added_distortion)
    : num_rows_(num_rows),
      count_(static_cast<std::int64_t>(coefficients.size())),
      num_quads_((count_ + kQuad - 1) / kQuad),
      has_run_(coefficients.empty() || coefficients.back() == count_ - 1),
      coefficients_(std::move(coefficients)) {
  const std::vector<int> widths = widths_of(layout, coefficients_);
  const float largest_of_all = largest_integer(layout);
  const std::int64_t padded = (num_rows + kRows - 1) / kRows * kRows;
  scale_.assign(at(padded), 0);
  offset_.assign(at(padded), 0);
  std::vector<int> integers(at(num_rows * count_));
  // Squared errors, summed over rows: what 8 bits add, and what the codes make.
  std::vector<float> added(at(count_), 0);
  float made = 0;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const float* of_row = weights + row * count_;
    const float unit = largest_of(of_row, count_) / largest_of_all;
    const float inverse = unit > std::numeric_limits<float>::min() ? 1 / unit : 0;
    scale_[at(row)] = unit;
    for (std::int64_t c = 0; c < count_; ++c) {
      const int integer = nearest(of_row[c] * inverse);
      integers[at(row * count_ + c)] = integer;
      const float error = unit * static_cast<float>(integer - 256 * high_of(integer));
      added[at(c)] += error * error;
      made += of_row[c] * of_row[c] / 12;
    }
  }
  std::int64_t wide = count_;
  const double allowed = added_distortion * static_cast<double>(made);
  for (double sum = 0; wide > 0; --wide) {
    sum += static_cast<double>(added[at(wide - 1)]) * (1 << 2 * widths[at(wide - 1)]) / kRange;
    if (sum > allowed) {
      break;
    }
  }
  num_wide_quads_ = (wide + kQuad - 1) / kQuad;
  high_.assign(at(padded * num_quads_ * kQuad), 0);
  low_.assign(at(padded * num_wide_quads_ * kQuad), 0);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t first = row / kRows * kRows;
    std::int8_t* high = high_.data() + first * num_quads_ * kQuad;
    std::int8_t* low = low_.data() + first * num_wide_quads_ * kQuad;
    std::int64_t twice_offset = 0;  // in units of the scale
    for (std::int64_t c = 0; c < count_; ++c) {
      int integer = integers[at(row * count_ + c)];
      const std::int64_t place = (c / kQuad * kRows + row % kRows) * kQuad + c % kQuad;
      high[place] = static_cast<std::int8_t>(high_of(integer));
      if (c < num_wide()) {
        low[place] = static_cast<std::int8_t>(integer - 256 * high_of(integer));
      } else {
        integer = 256 * high_of(integer);
      }
      twice_offset += (1 - (std::int64_t{1} << widths[at(c)])) * integer;
    }
    offset_[at(row)] = static_cast<float>(static_cast<double>(twice_offset) / 2 * scale_[at(row)]);
  }
  coefficients_.resize(at(num_quads_ * kQuad), 0);
}

int IntegerRows::integer(std::int64_t row, std::int64_t coefficient) const {
  const auto* end = coefficients_.data() + count_;
  const auto* found = std::lower_bound(coefficients_.data(), end, coefficient);
  if (found == end || *found != coefficient) {
    return 0;
  }
  const std::int64_t c = found - coefficients_.data();
  const std::int64_t place = (c / kQuad * kRows + row % kRows) * kQuad + c % kQuad;
  const std::int64_t first = row / kRows * kRows;
  const int high_byte = high(first)[place];
  return 256 * high_byte + (c < num_wide() ? low(first)[place] : 0);
}

}  // namespace kvc
