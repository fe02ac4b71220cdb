// Combination of partial softmaxes.
#include <cmath>
#include <limits>
#include <utility>

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
std::string run_combine(int num_parts, int width, KernelBackend& backend) {
  constexpr int kSequences = 2, kHeads = 3;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::vector<float> max = case_numbers(kSequences * num_parts * kHeads, 1);
  std::vector<float> sum = case_numbers(kSequences * num_parts * kHeads, 2);
  std::vector<float> output =
      case_numbers(std::int64_t{kSequences} * num_parts * kHeads * width, 3);
  for (std::size_t i = 0; i < max.size(); ++i) {
    sum[i] = 1 + std::fabs(sum[i]);
    max[i] *= 20;
    if (static_cast<int>(i) / kHeads % num_parts == 1) {  // never read beyond its max and sum
      max[i] = kNone;
      sum[i] = 0;
      std::fill_n(output.begin() + static_cast<std::ptrdiff_t>(i) * width, width, std::nanf(""));
    }
  }
  const std::vector<float> log_sum = case_numbers(kSequences * kHeads, 4);
  const std::vector<float> combined = case_numbers(kSequences * kHeads * width, 5);
  DevicePartials before = upload_partials(backend, log_sum, {}, combined, 1);
  before.sum = nullptr;
  const CombinedOutput actual =
      combine_on(backend, {upload_partials(backend, max, sum, output, num_parts), before},
                 kSequences, kHeads, width);
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
    for (int channel = 0; channel < width; ++channel) {
      double value = std::exp(double{log_sum[static_cast<std::size_t>(row)]}) *
                     combined[static_cast<std::size_t>(row * width + channel)];
      for (int part = 0; part < num_parts; ++part) {
        if (part != 1) {
          value += std::exp(double{max[part_row(part)]}) *
                   output[part_row(part) * static_cast<std::size_t>(width) +
                          static_cast<std::size_t>(channel)];
        }
      }
      expected.push_back(static_cast<float>(value / total));
    }
  }
  const std::string values = compare("output", actual.output, expected, 1e-5);
  return values.empty() ? compare("log_sum", actual.log_sum, expected_log, 1e-5) : values;
}

// Parts without tokens: nothing is read of their outputs.
std::string run_empty(KernelBackend& backend) {
  constexpr int kParts = 5, kHeads = 2, kWidth = 40;
  const std::vector<float> max(kParts * kHeads, -std::numeric_limits<float>::infinity());
  const std::vector<float> sum(max.size()), output(max.size() * kWidth, std::nanf(""));
  const CombinedOutput actual =
      combine_on(backend, {upload_partials(backend, max, sum, output, kParts)}, 1, kHeads, kWidth);
  if (actual.log_sum != std::vector<float>(kHeads, -std::numeric_limits<float>::infinity())) {
    return "log_sum";
  }
  return compare("output", actual.output, std::vector<float>(kHeads * kWidth), 0);
}

}  // namespace

std::vector<KernelCase> combine_cases(CaseSize) {
  std::vector<KernelCase> cases = {{"parts_without_tokens", run_empty}};
  // 66 parts: one sequence on 132 multiprocessors; 1100: more than a block has threads, and than its warps take at once.
  for (const auto& [num_parts, width] : {std::pair{3, 40}, {66, 40}, {66, 200}, {1100, 72}}) {
    cases.push_back({"parts_and_outputs_" + std::to_string(num_parts) + "_" + std::to_string(width),
                     [num_parts = num_parts, width = width](KernelBackend& backend) {
                       return run_combine(num_parts, width, backend);
                     }});
  }
  return cases;
}

CombinedOutput combine_outputs(KernelBackend& backend) {
  constexpr int kParts = 66, kHeads = 2, kWidth = 72;
  const std::vector<float> sum(kParts * kHeads, 1.5f);
  return combine_on(
      backend,
      {upload_partials(backend, case_numbers(kParts * kHeads, 1), sum,
                       case_numbers(std::int64_t{kParts} * kHeads * kWidth, 2), kParts)},
      1, kHeads, kWidth);
}

}  // namespace kvc::testing
