#include <algorithm>

#include "model/eigen/back_transform.h"
#include "model/eigen/chase_kernel.h"

namespace kvc {
namespace {

constexpr std::int64_t kPanelsTogether = 4;  // wider products, for a little more work

// T of the product of panels [first, end), from their own:
// (I - V1 T1 V1^T) (I - V2 T2 V2^T) = I - [V1 V2] [[T1, -T1 V1^T V2 T2], [0, T2]] [V1 V2]^T.
at::Tensor joint_factor(const std::vector<at::Tensor>& factors, std::size_t first, std::size_t end,
                        const at::Tensor& products) {
  std::int64_t size = 0;
  at::Tensor joint = at::zeros_like(products);
  for (std::size_t panel = first; panel < end; ++panel) {
    const at::Tensor& factor = factors[panel];
    const std::int64_t width = factor.size(0);
    joint.narrow(0, size, width).narrow(1, size, width).copy_(factor);
    if (size > 0) {
      const at::Tensor coupling =
          at::mm(products.narrow(0, 0, size).narrow(1, size, width), factor);
      joint.narrow(0, 0, size)
          .narrow(1, size, width)
          .copy_(at::mm(joint.narrow(0, 0, size).narrow(1, 0, size), coupling).neg_());
    }
    size += width;
  }
  return joint;
}

// V of panels [first, end) side by side, from the first one's first row on.
at::Tensor joint_reflectors(const BandReduction& reduction, std::int64_t first, std::int64_t end) {
  const std::int64_t n = reduction.size(), begin = (first + 1) * kBandWidth;
  const std::int64_t last_width = reduction.factors[static_cast<std::size_t>(end) - 1].size(0);
  at::Tensor v = at::zeros({n - begin, (end - 1 - first) * kBandWidth + last_width},
                           reduction.reflectors.options());
  for (std::int64_t panel = first; panel < end; ++panel) {
    const std::int64_t column = (panel - first) * kBandWidth, row = (panel + 1) * kBandWidth;
    const std::int64_t width = panel + 1 < end ? kBandWidth : last_width;
    v.narrow(0, column, n - row)
        .narrow(1, column, width)
        .copy_(reduction.reflectors.narrow(0, row, n - row).narrow(1, panel * kBandWidth, width));
  }
  return v;
}

}  // namespace

void apply_band_reduction(const BandReduction& reduction, at::Tensor& x) {
  const std::vector<at::Tensor>& factors = reduction.factors;
  const std::int64_t n = reduction.size();
  auto end = static_cast<std::int64_t>(factors.size());
  while (end > 0) {
    const std::int64_t first =
        std::max<std::int64_t>(0, (end - 1) / kPanelsTogether * kPanelsTogether);
    const std::int64_t begin = (first + 1) * kBandWidth;
    const at::Tensor v = joint_reflectors(reduction, first, end);
    const at::Tensor factor = joint_factor(factors, static_cast<std::size_t>(first),
                                           static_cast<std::size_t>(end), at::mm(v.t(), v));
    at::Tensor rows = x.narrow(0, begin, n - begin);
    rows.addmm_(v, at::mm(factor, at::mm(v.t(), rows)), 1, -1);
    end = first;
  }
}

}  // namespace kvc
