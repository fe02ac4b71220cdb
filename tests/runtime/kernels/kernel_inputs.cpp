#include "tests/runtime/kernels/kernel_inputs.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/kernels/cpu_features.h"
#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"
#include "runtime/kernels/quantise.h"

namespace kvc::testing {
namespace {

std::int64_t whole_groups(const RowsShape& shape) {
  const bool grouped = is_quantised(shape.element) && shape.scales == KvScales::kPerChannel;
  const std::int64_t step = grouped ? kQuantisedRows : 1;
  return (shape.num_rows + step - 1) / step * step;
}

void write_rows(const RowsShape& shape, const float* from, std::int64_t count, void* to) {
  if (is_quantised(shape.element)) {
    return quantise_rows_reference({.from = from,
                                    .count = count,
                                    .width = shape.width,
                                    .head_dim = shape.head_dim,
                                    .element = shape.element,
                                    .scales = shape.scales,
                                    .to = to});
  }
  for (std::int64_t i = 0; i < count * shape.width; ++i) {
    if (shape.element == KvElement::kFloat32) {
      static_cast<float*>(to)[i] = from[i];
    } else {
      static_cast<std::uint16_t*>(to)[i] = shape.element == KvElement::kBFloat16
                                               ? narrow_bfloat16(from[i])
                                               : narrow_float16(from[i], Rounding::kNearest);
    }
  }
}

}  // namespace

std::vector<float> random_numbers(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  std::generate(numbers.begin(), numbers.end(), [&] { return normal(random); });
  return numbers;
}

std::vector<float> random_bfloat16(std::int64_t count, unsigned seed) {
  std::vector<float> numbers = random_numbers(count, seed);
  for (float& x : numbers) {
    x = widen_bfloat16(narrow_bfloat16(x));
  }
  return numbers;
}

StoredRows::StoredRows(const RowsShape& shape, unsigned seed)
    : row_bytes_(kv_rows_bytes(1, shape.width, shape.head_dim, shape.element, KvScales::kPerRow)) {
  const std::int64_t num_rows = whole_groups(shape);
  const std::vector<float> numbers = random_numbers(num_rows * shape.width, seed);
  for (std::int64_t row = 0; row < num_rows; row += shape.block_rows) {
    const std::int64_t count = std::min(shape.block_rows, num_rows - row);
    memory_.emplace_back(static_cast<std::size_t>(
        kv_rows_bytes(count, shape.width, shape.head_dim, shape.element, shape.scales)));
    write_rows(shape, numbers.data() + row * shape.width, count, memory_.back().data());
  }
  for (const auto& block : memory_) {
    blocks_.push_back(block.data());
  }
  rows_ = {blocks_.data(), shape.block_rows, num_rows, shape.element, shape.scales};
}

void StoredRows::spoil_others(std::int64_t first, std::int64_t last) {
  constexpr int kNotNumbers = 0xFF;  // in every byte
  for (std::int64_t row = 0; row < rows_.num_rows; ++row) {
    if (row < first || row >= last) {
      auto& block = memory_[static_cast<std::size_t>(row / rows_.block_rows)];
      std::fill_n(block.begin() + row % rows_.block_rows * row_bytes_, row_bytes_, kNotNumbers);
    }
  }
}

Angles::Angles(std::int64_t num_positions, std::int64_t num_pairs, bool interleaved,
               double factor) {
  for (std::int64_t position = 0; position < num_positions; ++position) {
    for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
      const double turn =
          static_cast<double>(position) *
          std::pow(1e4, -static_cast<double>(pair) / static_cast<double>(num_pairs));
      cos.push_back(static_cast<float>(factor * std::cos(turn)));
      sin.push_back(static_cast<float>(factor * std::sin(turn)));
    }
  }
  rope = {cos.data(), sin.data(), num_pairs, interleaved};
}

Partial::Partial(std::int64_t num_heads, std::int64_t head_dim)
    : max(static_cast<std::size_t>(num_heads), NAN),
      sum(static_cast<std::size_t>(num_heads), NAN),
      output(static_cast<std::size_t>(num_heads * head_dim), NAN) {}

AttentionPartial Partial::view() { return {max.data(), sum.data(), output.data()}; }

void Partial::clear() {
  std::fill(max.begin(), max.end(), -INFINITY);
  std::fill(sum.begin(), sum.end(), 0.0f);
  std::fill(output.begin(), output.end(), 0.0f);
}

::testing::AssertionResult partials_close(const Partial& actual, const Partial& expected,
                                          double tolerance) {
  const std::size_t head_dim = expected.output.size() / expected.max.size();
  for (std::size_t head = 0; head < expected.max.size(); ++head) {
    const auto log_sum = [head](const Partial& partial) {
      return partial.max[head] + std::log(static_cast<double>(partial.sum[head]));
    };
    if (!(std::fabs(log_sum(actual) - log_sum(expected)) <= tolerance)) {
      return ::testing::AssertionFailure() << "head " << head << ": log of sum " << log_sum(actual)
                                           << ", expected " << log_sum(expected);
    }
    for (std::size_t channel = 0; channel < head_dim; ++channel) {
      const std::size_t at = head * head_dim + channel;
      const float is = actual.output[at] / actual.sum[head];
      const float wanted = expected.output[at] / expected.sum[head];
      if (!(std::fabs(is - wanted) <= tolerance)) {
        return ::testing::AssertionFailure() << "head " << head << ", channel " << channel << ": "
                                             << is << ", expected " << wanted;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

double tolerance_of_values(KvElement element) {
  return element == KvElement::kBFloat16 && has_avx512_bf16() ? 6 * 0x1p-9 : 1e-5;
}

std::string to_string(KvElement element) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "int8", "int4", "int2"};
  return kNames[static_cast<int>(element)];
}

}  // namespace kvc::testing
