// Combination of partial softmaxes, and rows of fused layers.
#include <cmath>
#include <limits>

#include "runtime/kernels/reference_rows.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

DevicePartials upload_partials(KernelBackend& backend, const std::vector<float>& max,
                               const std::vector<float>& sum, const std::vector<float>& output,
                               int num_parts) {
  return {backend.upload(max), backend.upload(sum), backend.upload(output), num_parts};
}

// Two sources, of which one has a part without tokens and one is an output of a combination before.
std::string run_combine(KernelBackend& backend) {
  constexpr int kSequences = 2, kHeads = 3, kWidth = 40, kParts = 3;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::vector<float> max = case_numbers(kSequences * kParts * kHeads, 1);
  std::vector<float> sum = case_numbers(kSequences * kParts * kHeads, 2);
  std::vector<float> output = case_numbers(kSequences * kParts * kHeads * kWidth, 3);
  for (std::size_t i = 0; i < max.size(); ++i) {
    sum[i] = 1 + std::fabs(sum[i]);
    max[i] *= 20;
    if (i / kHeads % kParts == 1) {  // never read beyond its max and sum
      max[i] = kNone;
      sum[i] = 0;
      std::fill_n(output.begin() + static_cast<std::ptrdiff_t>(i) * kWidth, kWidth, std::nanf(""));
    }
  }
  const std::vector<float> log_sum = case_numbers(kSequences * kHeads, 4);
  const std::vector<float> combined = case_numbers(kSequences * kHeads * kWidth, 5);
  DevicePartials before = upload_partials(backend, log_sum, {}, combined, 1);
  before.sum = nullptr;
  const CombinedOutput actual =
      combine_on(backend, {upload_partials(backend, max, sum, output, kParts), before}, kSequences,
                 kHeads, kWidth);
  std::vector<float> expected, expected_log;
  for (int row = 0; row < kSequences * kHeads; ++row) {
    const auto part_row = [&](int part) {
      return static_cast<std::size_t>((row / kHeads * kParts + part) * kHeads + row % kHeads);
    };
    double total = std::exp(double{log_sum[static_cast<std::size_t>(row)]});
    for (const int part : {0, 2}) {
      total += sum[part_row(part)] * std::exp(double{max[part_row(part)]});
    }
    expected_log.push_back(static_cast<float>(std::log(total)));
    for (int channel = 0; channel < kWidth; ++channel) {
      double value = std::exp(double{log_sum[static_cast<std::size_t>(row)]}) *
                     combined[static_cast<std::size_t>(row * kWidth + channel)];
      for (const int part : {0, 2}) {
        value += std::exp(double{max[part_row(part)]}) *
                 output[part_row(part) * kWidth + static_cast<std::size_t>(channel)];
      }
      expected.push_back(static_cast<float>(value / total));
    }
  }
  const std::string values = compare("output", actual.output, expected, 1e-5);
  return values.empty() ? compare("log_sum", actual.log_sum, expected_log, 1e-5) : values;
}

std::string run_fuse(KernelBackend& backend, DeviceElement store, bool per_channel,
                     DeviceElement to) {
  constexpr int kWidth = 96, kMaxRows = 70;
  const std::vector<int> num_rows{65, 3};
  const CaseRowsShape shape{num_rows, kWidth, kWidth, 32, store, per_channel};
  const CaseRows first(backend, shape, 1), second(backend, shape, 5000);
  const std::vector<float> factor = case_numbers(kWidth, 9);
  FuseRows params;
  params.first = first.device();
  params.second = second.device();
  params.first_factor = backend.upload(factor);
  params.num_rows = backend.upload(std::vector<std::int32_t>(num_rows.begin(), num_rows.end()));
  params.num_sequences = 2;
  params.max_rows = kMaxRows;
  params.element = to;
  auto* output = backend.unwritten<std::uint16_t>(2 * kMaxRows * kWidth);
  params.output = output;
  backend.run(params);
  const std::vector<std::uint16_t> written = backend.download(output, 2 * kMaxRows * kWidth);
  std::vector<float> actual, expected;
  for (std::size_t sequence = 0; sequence < 2; ++sequence) {
    for (int row = 0; row < kMaxRows; ++row) {
      for (int channel = 0; channel < kWidth; ++channel) {
        const std::uint16_t bits =
            written[(sequence * kMaxRows + static_cast<std::size_t>(row)) * kWidth +
                    static_cast<std::size_t>(channel)];
        if (row >= num_rows[sequence]) {
          actual.push_back(bits);  // as it was
          expected.push_back(0xFFFF);
          continue;
        }
        const auto number = [&](const CaseRows& rows) {
          return static_cast<float>(
              reference_row(rows.host(sequence), kWidth, kWidth, row, channel, 1)[0]);
        };
        actual.push_back(to == DeviceElement::kBFloat16 ? to_float(BFloat16{bits})
                                                        : to_float(Float16{bits}));
        expected.push_back(factor[static_cast<std::size_t>(channel)] * number(first) +
                           number(second));
      }
    }
  }
  return compare("fused row", actual, expected, to == DeviceElement::kBFloat16 ? 4e-2 : 5e-3);
}

}  // namespace

std::vector<KernelCase> combine_cases(CaseSize) { return {{"parts_and_outputs", run_combine}}; }

std::vector<KernelCase> fuse_rows_cases(CaseSize) {
  std::vector<KernelCase> cases;
  for (const DeviceElement to : {DeviceElement::kBFloat16, DeviceElement::kFloat16}) {
    for (const DeviceElement store :
         {DeviceElement::kBFloat16, DeviceElement::kFloat16, DeviceElement::kFloat8,
          DeviceElement::kInt8, DeviceElement::kInt4}) {
      for (const bool per_channel : {false, true}) {
        if (per_channel && !is_coded(store)) {
          continue;
        }
        std::string name = element_name(store);
        name += per_channel ? "_per_channel_to_" : "_to_";
        name += element_name(to);
        cases.push_back({name, [=](KernelBackend& backend) {
                           return run_fuse(backend, store, per_channel, to);
                         }});
      }
    }
  }
  return cases;
}

}  // namespace kvc::testing
