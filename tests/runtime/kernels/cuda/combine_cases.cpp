// Combination of partial softmaxes.
#include <cmath>
#include <limits>

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
std::string run_combine(int num_parts, KernelBackend& backend) {
  constexpr int kSequences = 2, kHeads = 3, kWidth = 40;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::vector<float> max = case_numbers(kSequences * num_parts * kHeads, 1);
  std::vector<float> sum = case_numbers(kSequences * num_parts * kHeads, 2);
  std::vector<float> output = case_numbers(kSequences * num_parts * kHeads * kWidth, 3);
  for (std::size_t i = 0; i < max.size(); ++i) {
    sum[i] = 1 + std::fabs(sum[i]);
    max[i] *= 20;
    if (static_cast<int>(i) / kHeads % num_parts == 1) {  // never read beyond its max and sum
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
      combine_on(backend, {upload_partials(backend, max, sum, output, num_parts), before},
                 kSequences, kHeads, kWidth);
  std::vector<float> expected, expected_log;
  for (int row = 0; row < kSequences * kHeads; ++row) {
    const auto part_row = [&](int part) {
      return static_cast<std::size_t>((row / kHeads * num_parts + part) * kHeads + row % kHeads);
    };
    double total = std::exp(double{log_sum[static_cast<std::size_t>(row)]});
    for (int part = 0; part < num_parts; ++part) {
      total += sum[part_row(part)] * std::exp(double{max[part_row(part)]});
    }
    expected_log.push_back(static_cast<float>(std::log(total)));
    for (int channel = 0; channel < kWidth; ++channel) {
      double value = std::exp(double{log_sum[static_cast<std::size_t>(row)]}) *
                     combined[static_cast<std::size_t>(row * kWidth + channel)];
      for (int part = 0; part < num_parts; ++part) {
        if (part != 1) {
          value += std::exp(double{max[part_row(part)]}) *
                   output[part_row(part) * kWidth + static_cast<std::size_t>(channel)];
        }
      }
      expected.push_back(static_cast<float>(value / total));
    }
  }
  const std::string values = compare("output", actual.output, expected, 1e-5);
  return values.empty() ? compare("log_sum", actual.log_sum, expected_log, 1e-5) : values;
}

}  // namespace

std::vector<KernelCase> combine_cases(CaseSize) {
  std::vector<KernelCase> cases;
  for (const int num_parts : {3, 66}) {  // 66: of one sequence on 132 multiprocessors
    cases.push_back(
        {"parts_and_outputs_" + std::to_string(num_parts),
         [num_parts](KernelBackend& backend) { return run_combine(num_parts, backend); }});
  }
  return cases;
}

}  // namespace kvc::testing
