#include "convert/coded/bit_allocation.h"

#include <algorithm>
#include <tuple>

namespace kvc {
namespace {

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
