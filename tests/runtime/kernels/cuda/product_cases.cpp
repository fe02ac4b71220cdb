// Products of a few rows with a weight, against plain loops in double precision.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/kernels/cuda/few_rows_product_kernel.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/case_weight.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

struct ProductShape {
  int rows, in, out;
  DeviceElement element;
  bool codes, gated;
  DeviceActivation activation = DeviceActivation::kNone;
  float softcap = 0;
};

// Empty, or a row that is not the same, to the bit, in a launch of at most eight rows.
std::string rows_alone(const FewRowsProduct& all, std::size_t count, KernelBackend& backend) {
  const std::vector<float> together = backend.download(all.output_float, count);
  std::vector<float> alone;
  for (int first = 0; first < all.num_rows; first += kProductRows) {
    FewRowsProduct part = all;
    part.x = static_cast<const std::uint16_t*>(all.x) + at(first, all.in, 0);
    part.num_rows = std::min(all.num_rows - first, kProductRows);
    part.residual = nullptr;
    part.output = nullptr;
    const std::size_t of_part = at(part.num_rows, all.out, 0);
    part.output_float = backend.unwritten<float>(of_part);
    backend.run(part);
    const std::vector<float> rows = backend.download(part.output_float, of_part);
    alone.insert(alone.end(), rows.begin(), rows.end());
  }
  const std::string difference = compare("products of eight rows", alone, together, 0);
  return difference.empty() && alone != together ? "products of eight rows" : difference;
}

std::string product_case(const ProductShape& shape, KernelBackend& backend) {
  const int weight_rows = (shape.gated ? 2 : 1) * shape.out;
  const CaseWeight weight(backend, weight_rows, shape.in, shape.element, shape.codes, 1);
  const std::vector<float> x =
      rounded(case_numbers(std::int64_t{shape.rows} * shape.in, 3), shape.element);
  const std::vector<float> bias = case_numbers(weight_rows, 4);
  const std::vector<float> residual = case_numbers(std::int64_t{shape.rows} * shape.out, 5);
  FewRowsProduct params{.x = backend.upload(narrowed(x, shape.element)),
                        .element = shape.element,
                        .num_rows = shape.rows,
                        .in = shape.in,
                        .out = shape.out,
                        .weight = weight.device,
                        .scales = weight.scales,
                        .bias = backend.upload(bias),
                        .gated = shape.gated,
                        .activation = shape.activation,
                        .scale = 0.5f,
                        .softcap = shape.softcap,
                        .residual = backend.upload(residual)};
  const std::size_t count = residual.size();
  auto* halves = backend.unwritten<std::uint16_t>(count);
  params.output = halves;
  params.output_float = backend.unwritten<float>(count);
  backend.run(params);
  std::vector<float> expected, sums;
  double largest = 1;
  for (int row = 0; row < shape.rows; ++row) {
    for (int out = 0; out < shape.out; ++out) {
      double y[2] = {};
      for (int matrix = 0; matrix < (shape.gated ? 2 : 1); ++matrix) {
        const int of_weight = matrix * shape.out + out;
        y[matrix] = weight.product(of_weight, x, row) + bias[static_cast<std::size_t>(of_weight)];
      }
      double result =
          activated(shape.activation, static_cast<float>(y[0])) * (shape.gated ? y[1] : 1.0) * 0.5;
      result = shape.softcap == 0 ? result : shape.softcap * std::tanh(result / shape.softcap);
      largest = std::fmax(largest, std::fabs(result));
      expected.push_back(static_cast<float>(result));
      sums.push_back(static_cast<float>(residual[at(row, shape.out, out)] + result));
    }
  }
  std::vector<float> from_halves;
  for (const std::uint16_t bits : backend.download(halves, count)) {
    from_halves.push_back(shape.element == DeviceElement::kBFloat16 ? to_float(BFloat16{bits})
                                                                    : to_float(Float16{bits}));
  }
  const double tolerance = 1e-5 * largest;
  for (const std::string& difference :
       {rows_alone(params, count, backend),
        compare("products", backend.download(params.output_float, count), expected, tolerance),
        compare("residual", backend.download(params.residual, count), sums, tolerance),
        compare("16-bit products", from_halves, expected, 5e-3 * largest)}) {
    if (!difference.empty()) {
      return difference;
    }
  }
  return {};
}

}  // namespace

std::vector<KernelCase> product_cases() {
  constexpr auto kBf16 = DeviceElement::kBFloat16, kF16 = DeviceElement::kFloat16;
  std::vector<KernelCase> cases;
  const auto add_product = [&](const std::string& name, const ProductShape& shape) {
    cases.push_back({"product_" + name,
                     [shape](KernelBackend& backend) { return product_case(shape, backend); }});
  };
  add_product("one_row", {1, 200, 40, kBf16, false, false});
  add_product("eight_rows_float16", {8, 512, 33, kF16, false, false});
  add_product("few_columns", {3, 8, 16, kBf16, false, false, DeviceActivation::kGelu});
  add_product("gated", {5, 72, 24, kBf16, false, true, DeviceActivation::kSilu});
  add_product("gated_tanh_softcap",
              {2, 320, 17, kF16, false, true, DeviceActivation::kGeluTanh, 3});
  add_product("codes", {2, 72, 40, kBf16, true, false});
  add_product("codes_gated_float16", {8, 544, 20, kF16, true, true, DeviceActivation::kSilu});
  // Whole and broken tiles of rows and of outputs, and columns that end within a warp's.
  for (const int rows : {9, 16, 17, 24, 31, 32}) {
    for (const DeviceElement element : {kBf16, kF16}) {
      for (const bool codes : {false, true}) {
        for (const bool gated : {false, true}) {
          add_product("of_" + std::to_string(rows) + "_" + element_name(element) +
                          (codes ? "_codes" : "") + (gated ? "_gated" : ""),
                      {rows, 168, 37, element, codes, gated,
                       gated ? DeviceActivation::kSilu : DeviceActivation::kNone});
        }
      }
    }
  }
  return cases;
}

}  // namespace kvc::testing
