#include "tests/runtime/kernels/cuda/case_inputs.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/kernels/quantise.h"

namespace kvc::testing {
namespace {

KvElement host_element(DeviceElement element) {
  switch (element) {
    case DeviceElement::kBFloat16:
      return KvElement::kBFloat16;
    case DeviceElement::kFloat16:
      return KvElement::kFloat16;
    case DeviceElement::kInt8:
      return KvElement::kInt8;
    case DeviceElement::kInt4:
      return KvElement::kInt4;
    default:
      return KvElement::kFloat32;
  }
}

std::vector<std::uint8_t> bytes_of(const void* from, std::size_t count) {
  const auto* bytes = static_cast<const std::uint8_t*>(from);
  return {bytes, bytes + count};
}

constexpr float kFloat8Scale = 0.25f;

// One block as kernels of the CPU and of the GPU read it.
struct BlockBytes {
  std::vector<std::uint8_t> host, device;
};

BlockBytes block_bytes(const CaseRowsShape& shape, std::vector<float> numbers) {
  BlockBytes bytes;
  if (shape.element == DeviceElement::kFloat8) {
    for (float& x : numbers) {
      bytes.device.push_back(float_to_float8(x / kFloat8Scale));
      x = kFloat8Scale * float8_to_float(bytes.device.back());
    }
    bytes.host = bytes_of(numbers.data(), numbers.size() * sizeof(float));
    return bytes;
  }
  if (!is_coded(shape.element)) {
    const std::vector<std::uint16_t> halves = narrowed(numbers, shape.element);
    bytes.host = bytes_of(halves.data(), halves.size() * 2);
  } else {
    const KvElement element = host_element(shape.element);
    const KvScales scales = shape.per_channel ? KvScales::kPerChannel : KvScales::kPerRow;
    bytes.host.resize(static_cast<std::size_t>(
        kv_rows_bytes(shape.block_rows, shape.width, shape.head_dim, element, scales)));
    quantise_rows_reference({.from = numbers.data(),
                             .count = shape.block_rows,
                             .width = shape.width,
                             .head_dim = shape.head_dim,
                             .element = element,
                             .scales = scales,
                             .to = bytes.host.data()});
  }
  bytes.device = bytes.host;
  return bytes;
}

}  // namespace

std::vector<float> case_numbers(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  std::generate(numbers.begin(), numbers.end(), [&] { return normal(random); });
  return numbers;
}

std::vector<std::uint16_t> narrowed(const std::vector<float>& numbers, DeviceElement element) {
  std::vector<std::uint16_t> halves;
  for (const float x : numbers) {
    halves.push_back(element == DeviceElement::kBFloat16 ? narrow_bits(BFloat16{}, x)
                                                         : narrow_bits(Float16{}, x));
  }
  return halves;
}

std::vector<float> rounded(const std::vector<float>& numbers, DeviceElement element) {
  std::vector<float> result;
  for (const std::uint16_t bits : narrowed(numbers, element)) {
    result.push_back(element == DeviceElement::kBFloat16 ? to_float(BFloat16{bits})
                                                         : to_float(Float16{bits}));
  }
  return result;
}

CaseRows::CaseRows(KernelBackend& backend, const CaseRowsShape& shape, unsigned seed) {
  const int most = *std::max_element(shape.num_rows.begin(), shape.num_rows.end());
  const int max_blocks = (most + shape.block_rows - 1) / shape.block_rows;
  std::vector<const void*> device_table;
  for (const int num_rows : shape.num_rows) {
    tables_.emplace_back();
    for (int block = 0; block < max_blocks; ++block) {
      if (block * shape.block_rows >= num_rows) {
        device_table.push_back(nullptr);
        continue;
      }
      const std::int64_t count = std::int64_t{shape.block_rows} * shape.width;
      const BlockBytes bytes = block_bytes(shape, case_numbers(count, seed++));
      memory_.push_back(bytes.host);
      tables_.back().push_back(memory_.back().data());
      device_table.push_back(backend.upload(bytes.device));
    }
    host_.push_back({.blocks = tables_.back().data(),
                     .block_rows = shape.block_rows,
                     .num_rows = num_rows,
                     .element = host_element(shape.element),
                     .scales = shape.per_channel ? KvScales::kPerChannel : KvScales::kPerRow});
  }
  device_.blocks = backend.upload(device_table);
  device_.max_blocks = max_blocks;
  device_.block_rows = shape.block_rows;
  device_.width = shape.width;
  device_.element = shape.element;
  device_.per_channel = shape.per_channel;
  device_.scale = kFloat8Scale;
}

CaseAngles::CaseAngles(KernelBackend& backend, std::int64_t num_positions, int num_pairs,
                       bool interleaved) {
  for (std::int64_t position = 0; position < num_positions; ++position) {
    for (int pair = 0; pair < num_pairs; ++pair) {
      const double angle =
          static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(pair) / num_pairs);
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  host = {cos.data(), sin.data(), num_pairs, interleaved};
  device.cos = backend.upload(cos);
  device.sin = backend.upload(sin);
  device.num_pairs = num_pairs;
  device.interleaved = interleaved;
}

DevicePartials unwritten_partials(KernelBackend& backend, int num_sequences, int num_parts,
                                  int num_heads, int width) {
  const auto rows = static_cast<std::size_t>(num_sequences) * static_cast<std::size_t>(num_parts) *
                    static_cast<std::size_t>(num_heads);
  DevicePartials partials;
  partials.max = backend.unwritten<float>(rows);
  partials.sum = backend.unwritten<float>(rows);
  partials.output = backend.unwritten<float>(rows * static_cast<std::size_t>(width));
  partials.num_parts = num_parts;
  return partials;
}

CombinedOutput combine_on(KernelBackend& backend, const std::vector<DevicePartials>& sources,
                          int num_sequences, int num_heads, int width) {
  const auto rows = static_cast<std::size_t>(num_sequences) * static_cast<std::size_t>(num_heads);
  const std::size_t count = rows * static_cast<std::size_t>(width);
  CombinePartials params;
  std::copy(sources.begin(), sources.end(), params.sources);
  params.num_sources = static_cast<int>(sources.size());
  params.num_sequences = num_sequences;
  params.num_heads = num_heads;
  params.width = width;
  params.output_float = backend.unwritten<float>(count);
  params.log_sum = backend.unwritten<float>(rows);
  backend.run(params);
  return {backend.download(params.output_float, count), backend.download(params.log_sum, rows)};
}

std::string compare(const std::string& what, const std::vector<float>& actual,
                    const std::vector<float>& expected, double tolerance) {
  if (actual.size() != expected.size()) {
    return what + ": " + std::to_string(actual.size()) + " numbers, expected " +
           std::to_string(expected.size());
  }
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::fabs(static_cast<double>(actual[i]) - expected[i]);
    if (!(error <= worst)) {  // no number is the worst
      worst = error;
      at = i;
      if (std::isnan(error)) {
        break;
      }
    }
  }
  if (worst <= tolerance) {
    return {};
  }
  return what + "[" + std::to_string(at) + "] is " + std::to_string(actual[at]) + ", expected " +
         std::to_string(expected[at]) + ": off by " + std::to_string(worst) + ", allowed " +
         std::to_string(tolerance);
}

double case_tolerance(DeviceElement element) {
  return element == DeviceElement::kBFloat16 ? 2e-2 : 3e-3;
}

std::string element_name(DeviceElement element) {
  switch (element) {
    case DeviceElement::kBFloat16:
      return "bfloat16";
    case DeviceElement::kFloat16:
      return "float16";
    case DeviceElement::kFloat8:
      return "float8";
    case DeviceElement::kInt8:
      return "int8";
    default:
      return "int4";
  }
}

}  // namespace kvc::testing
