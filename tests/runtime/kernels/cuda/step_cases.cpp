// What a step does beside attention, against plain loops in double precision.
#include "tests/runtime/kernels/cuda/kernel_cases.h"

#include <cmath>
#include <cstdint>

#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/case_weight.h"

namespace kvc::testing {
namespace {

std::string norm_case(bool weighted, bool layer, KernelBackend& backend) {
  const int rows = 3, width = 72;
  const std::vector<float> x = case_numbers(rows * width, 1), weight = case_numbers(width, 2),
                           bias = case_numbers(width, 3), before = case_numbers(rows * width, 4);
  NormRows params{.x = backend.upload(x), .num_rows = rows, .width = width, .epsilon = 1e-5f};
  params.weight = weighted ? backend.upload(weight) : nullptr;
  params.bias = layer ? backend.upload(bias) : nullptr;
  auto* halves = backend.unwritten<std::uint16_t>(x.size());
  params.output = halves;
  params.residual = backend.upload(before);
  params.residual_scale = 0.25f;
  backend.run(params);
  std::vector<float> expected, sums, from_halves;
  for (int row = 0; row < rows; ++row) {
    double mean = 0, square = 0;
    for (int i = 0; i < width; ++i) {
      mean += layer ? x[at(row, width, i)] / static_cast<double>(width) : 0.0;
    }
    for (int i = 0; i < width; ++i) {
      square += std::pow(x[at(row, width, i)] - mean, 2) / width;
    }
    for (int i = 0; i < width; ++i) {
      const std::size_t channel = static_cast<std::size_t>(i);
      double y = x[at(row, width, i)];
      if (weighted) {
        y = (y - mean) / std::sqrt(square + 1e-5) * weight[channel] +
            (layer ? bias[channel] : 0.0f);
      }
      expected.push_back(static_cast<float>(y));
      sums.push_back(static_cast<float>(before[at(row, width, i)] + 0.25 * y));
    }
  }
  for (const std::uint16_t bits : backend.download(halves, x.size())) {
    from_halves.push_back(to_float(BFloat16{bits}));
  }
  const std::string difference =
      compare("residual", backend.download(params.residual, x.size()), sums, 1e-5);
  return difference.empty() ? compare("normed", from_halves, expected, 0.03) : difference;
}

std::string embed_case(bool codes, KernelBackend& backend) {
  const int width = 72, vocab = 40;
  const CaseWeight table(backend, vocab, width, DeviceElement::kFloat16, codes, 1);
  const std::vector<std::int32_t> ids = {39, 0, 17};
  EmbedRows params{.ids = backend.upload(ids),
                   .num_rows = 3,
                   .width = width,
                   .table = table.device,
                   .scales = table.scales,
                   .element = DeviceElement::kFloat16,
                   .scale = 3,
                   .output = backend.unwritten<float>(3 * width)};
  backend.run(params);
  std::vector<float> expected;
  for (const std::int32_t id : ids) {
    for (int i = 0; i < width; ++i) {
      expected.push_back(3 * table.numbers[at(id, width, i)]);
    }
  }
  return compare("embeddings", backend.download(params.output, 3 * width), expected, 1e-4);
}

std::string cosine_case(DeviceElement element, KernelBackend& backend) {
  const int num_rows = 37, width = 71;
  const std::vector<float> a = rounded(case_numbers(num_rows * width, 9), element),
                           b = rounded(case_numbers(num_rows * width, 10), element);
  auto* cosines = backend.unwritten<float>(num_rows);
  backend.run(RowCosines{.a = backend.upload(narrowed(a, element)),
                         .b = backend.upload(narrowed(b, element)),
                         .num_rows = num_rows,
                         .width = width,
                         .element = element,
                         .cosines = cosines});
  std::vector<float> expected;
  for (int row = 0; row < num_rows; ++row) {
    const auto product = [&](const std::vector<float>& x, const std::vector<float>& y) {
      double sum = 0;
      for (int column = 0; column < width; ++column) {
        sum += static_cast<double>(x[at(row, width, column)]) * y[at(row, width, column)];
      }
      return sum;
    };
    expected.push_back(
        static_cast<float>(product(a, b) / std::sqrt(product(a, a) * product(b, b))));
  }
  return compare("cosines", backend.download(cosines, num_rows), expected, 1e-5);
}

}  // namespace

std::vector<KernelCase> step_cases() {
  constexpr auto kBf16 = DeviceElement::kBFloat16, kF16 = DeviceElement::kFloat16;
  std::vector<KernelCase> cases = append_cases();
  for (const KernelCase& product_case : product_cases()) {
    cases.push_back(product_case);
  }
  for (const bool weighted : {false, true}) {
    for (const bool layer : {false, true}) {
      if (weighted || !layer) {
        cases.push_back(
            {std::string("norm_") + (layer      ? "layer"
                                     : weighted ? "rms"
                                                : "none"),
             [=](KernelBackend& backend) { return norm_case(weighted, layer, backend); }});
      }
    }
  }
  for (const bool codes : {false, true}) {
    cases.push_back({codes ? "embed_codes" : "embed",
                     [=](KernelBackend& backend) { return embed_case(codes, backend); }});
  }
  for (const DeviceElement element : {kBf16, kF16}) {
    cases.push_back({"cosines_" + element_name(element),
                     [element](KernelBackend& backend) { return cosine_case(element, backend); }});
  }
  return cases;
}

}  // namespace kvc::testing
