// AdamW (Loshchilov and Hutter) over a few tensors, without weight decay: it would pull factors and weights
// to zero, away from their fit.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace kvc {

struct AdamW {
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8;

  std::vector<at::Tensor> first, second;  // moments of the gradients, like the parameters

  static AdamW of(const std::vector<at::Tensor>& parameters);
  // Moves the parameters in place, each at its rate; `step` counts from 1.
  void update(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
              const std::vector<double>& rates, std::int64_t step);
};

// Half a cosine from `highest` at step 0 to 0 at `steps`.
double cosine_rate(double highest, std::int64_t step, std::int64_t steps);

}  // namespace kvc
