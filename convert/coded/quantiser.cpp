#include "convert/coded/quantiser.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.h"
#include "core/kv_sources.h"

namespace kvc {
namespace {

// Steps with the least mean squared error for a normal variable of variance 1, by bits.
constexpr std::array<double, kMaxCodeBits + 1> kGaussianSteps = {0,     1.596, 0.996, 0.586, 0.335,
                                                                 0.188, 0.104, 0.057, 0.031};
constexpr double kLeastFactor = 0.7, kMostFactor = 3.2;
constexpr int kNumFactors = 12;
// Coefficients at a time: a CPU's cache holds them; a GPU is busy with them.
constexpr std::int64_t kChunk = 16, kGpuChunk = 256;

at::Tensor mean_square(const at::Tensor& x) { return x.square().mean(1, false, at::kDouble); }

// The best step of each of some coefficients for one width, and its error. steps, errors [count] float64
void search_steps(const at::Tensor& coefficients, const at::Tensor& deviations, int bits,
                  at::Tensor steps, at::Tensor errors) {
  errors.fill_(INFINITY);
  const double ratio = std::pow(kMostFactor / kLeastFactor, 1.0 / (kNumFactors - 1));
  double factor = kLeastFactor * kGaussianSteps[static_cast<std::size_t>(bits)];
  for (int i = 0; i < kNumFactors; ++i, factor *= ratio) {
    const at::Tensor tried = deviations * factor;
    const at::Tensor error = mean_square(
        quantised(coefficients, tried.to(at::kFloat).unsqueeze(1), bits).sub_(coefficients));
    const at::Tensor better = error < errors;
    steps.copy_(at::where(better, tried, steps));
    errors.copy_(at::where(better, error, errors));
  }
}

// A coefficient's way from one width to a larger one.
struct BitStep {
  double saved = 0;  // distortion per bit
  std::size_t block = 0, coefficient = 0;
  int from = 0, to = 0;
  bool first = false;  // of the block
};

// Appends the steps of the lower convex hull of points (widths[i], distortions[i]), of falling gain.
void add_hull(const std::vector<int>& widths, const std::vector<double>& distortions,
              std::size_t block, std::size_t coefficient, std::vector<BitStep>& steps) {
  const auto saved = [&](std::size_t a, std::size_t b) {
    return (distortions[a] - distortions[b]) / (widths[b] - widths[a]);
  };
  std::vector<std::size_t> hull = {0};
  for (std::size_t i = 1; i < widths.size(); ++i) {
    while (hull.size() > 1 && saved(hull[hull.size() - 2], hull.back()) <= saved(hull.back(), i)) {
      hull.pop_back();
    }
    hull.push_back(i);
  }
  for (std::size_t i = 1; i < hull.size(); ++i) {
    const bool first = coefficient == 0 && i == 1;
    const double gain = saved(hull[i - 1], hull[i]);
    if (gain <= 0 && !first) {
      break;
    }
    steps.push_back({gain, block, coefficient, widths[hull[i - 1]], widths[hull[i]], first});
  }
}

bool comes_before(const BitStep& a, const BitStep& b) {
  return std::make_tuple(!a.first, -a.saved, a.block, a.coefficient, a.to) <
         std::make_tuple(!b.first, -b.saved, b.block, b.coefficient, b.to);
}

}  // namespace

at::Tensor quantised(const at::Tensor& coefficients, const at::Tensor& steps, int bits) {
  const double most = std::ldexp(1.0, bits - 1);
  return (coefficients / steps).floor_().clamp_(-most, most - 1).add_(0.5).mul_(steps);
}

WidthCurves measure_widths(const at::Tensor& coefficients, const std::vector<int>& widths) {
  const std::int64_t n = coefficients.size(0);
  const auto num_widths = static_cast<std::int64_t>(widths.size());
  const at::TensorOptions options = coefficients.options().dtype(at::kDouble);
  WidthCurves curves{widths, at::zeros({num_widths, n}, options),
                     at::zeros({num_widths, n}, options)};
  const std::int64_t at_once = coefficients.is_cpu() ? kChunk : kGpuChunk;
  for (std::int64_t first = 0; first < n; first += at_once) {
    const std::int64_t count = std::min(at_once, n - first);
    const at::Tensor chunk = coefficients.narrow(0, first, count);
    const at::Tensor energy = mean_square(chunk);
    // A coefficient that is always 0 still needs a step that can be divided by.
    const at::Tensor deviations = energy.sqrt().clamp_min(1e-20);
    for (std::int64_t i = 0; i < num_widths; ++i) {
      const int bits = widths[static_cast<std::size_t>(i)];
      at::Tensor errors = curves.distortions[i].narrow(0, first, count);
      if (bits == 0) {
        errors.copy_(energy);
      } else {
        search_steps(chunk, deviations, bits, curves.steps[i].narrow(0, first, count), errors);
      }
    }
  }
  curves.steps = curves.steps.cpu();
  curves.distortions = curves.distortions.cpu();
  return curves;
}

double coding_error(const at::Tensor& coefficients, const std::vector<int>& bits,
                    const at::Tensor& steps, bool gain) {
  const at::Tensor steps32 = steps.to(coefficients.options());
  std::vector<at::Tensor> sums;  // per gain, [num_tokens]
  for (const double factor : kCodeGains) {
    if (!gain && factor != 1) {
      continue;
    }
    at::Tensor sum = at::zeros({coefficients.size(1)}, coefficients.options().dtype(at::kDouble));
    for (std::size_t first = 0, last = 0; first < bits.size(); first = last) {
      while (last < bits.size() && bits[last] == bits[first]) {
        ++last;
      }
      const auto begin = static_cast<std::int64_t>(first);
      const auto count = static_cast<std::int64_t>(last - first);
      const at::Tensor rows = coefficients.narrow(0, begin, count);
      const at::Tensor error =
          bits[first] == 0
              ? rows
              : quantised(rows, steps32.narrow(0, begin, count).unsqueeze(1) * factor, bits[first])
                    .sub_(rows);
      sum.add_(error.square().sum(0));
    }
    sums.push_back(sum);
  }
  return std::get<0>(at::stack(sums).min(0)).mean().item<double>();
}

BitAllocation allocate_bits(const std::vector<WidthCurves>& blocks, std::int64_t budget) {
  BitAllocation allocation;
  std::vector<BitStep> steps;
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    const WidthCurves& curves = blocks[block];
    const auto n = static_cast<std::size_t>(curves.distortions.size(1));
    allocation.bits.emplace_back(n, 0);
    const at::Tensor table = curves.distortions.t().contiguous();
    const double* row = table.const_data_ptr<double>();
    for (std::size_t i = 0; i < n; ++i, row += curves.widths.size()) {
      add_hull(curves.widths, {row, row + curves.widths.size()}, block, i, steps);
    }
  }
  std::sort(steps.begin(), steps.end(), comes_before);
  bool spent = false;
  for (const BitStep& step : steps) {
    int& bits = allocation.bits[step.block][step.coefficient];
    if (bits != step.from) {  // a smaller step of it did not fit
      continue;
    }
    if (allocation.total + step.to - step.from > budget) {
      allocation.price = spent ? allocation.price : step.saved;
      spent = true;
      continue;
    }
    bits = step.to;
    allocation.total += step.to - step.from;
  }
  return allocation;
}

}  // namespace kvc
