// What a step does beside attention, against plain loops in double precision.
#include "tests/runtime/kernels/cuda/kernel_cases.h"

#include <cmath>
#include <cstdint>

#include "runtime/kernels/cuda/few_rows_product_kernel.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"

namespace kvc::testing {
namespace {

std::size_t at(int row, int width, int column) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
         static_cast<std::size_t>(column);
}

// A weight on both sides: numbers, or codes with scales.
struct CaseWeight {
  CaseWeight(KernelBackend& backend, int rows, int columns, DeviceElement element, bool codes,
             unsigned seed)
      : in(columns) {
    if (!codes) {
      numbers = rounded(case_numbers(std::int64_t{rows} * columns, seed), element);
      device = backend.upload(narrowed(numbers, element));
      return;
    }
    const int groups = weight_groups(columns);
    const std::vector<float> random = case_numbers(std::int64_t{rows} * groups * 32, seed);
    std::vector<float> steps = case_numbers(std::int64_t{rows} * groups, seed + 1);
    for (float& step : steps) {
      step *= 0.02f;  // weights of order one
    }
    steps = rounded(steps, DeviceElement::kFloat16);
    std::vector<std::int8_t> stored(random.size());
    numbers.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        const std::size_t i = at(row, groups * 32, column);
        stored[i] = static_cast<std::int8_t>(std::fmax(-127.0f, std::fmin(127.0f, 50 * random[i])));
        numbers[at(row, columns, column)] =
            static_cast<float>(stored[i]) * steps[at(row, groups, column / 32)];
      }
    }
    device = backend.upload(stored);
    scales = backend.upload(narrowed(steps, DeviceElement::kFloat16));
  }
  double product(int row, const std::vector<float>& x, int x_row) const {
    double sum = 0;
    for (int column = 0; column < in; ++column) {
      sum += static_cast<double>(numbers[at(row, in, column)]) * x[at(x_row, in, column)];
    }
    return sum;
  }

  int in;
  std::vector<float> numbers;
  const void* device = nullptr;
  const void* scales = nullptr;
};

struct ProductShape {
  int rows, in, out;
  DeviceElement element;
  bool codes, gated;
  DeviceActivation activation = DeviceActivation::kNone;
  float softcap = 0;
};

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
       {compare("products", backend.download(params.output_float, count), expected, tolerance),
        compare("residual", backend.download(params.residual, count), sums, tolerance),
        compare("16-bit products", from_halves, expected, 5e-3 * largest)}) {
    if (!difference.empty()) {
      return difference;
    }
  }
  return {};
}

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
