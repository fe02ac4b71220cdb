#include <cmath>

#include "model/eigen/chase_kernel.h"

namespace kvc {

double make_reflector(double* x, double* head) {
  // Matrices are scaled to entries of at most 1: a tail of this size is far below rounding.
  constexpr double kNegligible = 1e-260;
  double tail = 0;
  for (std::int64_t i = 1; i < kBandWidth; ++i) {
    tail += x[i] * x[i];
  }
  *head = x[0];
  double scale = 0;
  if (tail > kNegligible) {
    *head = -std::copysign(std::sqrt(x[0] * x[0] + tail), x[0]);
    scale = (*head - x[0]) / *head;
  }
  const double factor = tail > kNegligible ? 1 / (x[0] - *head) : 0;
  x[0] = 1;
  for (std::int64_t i = 1; i < kBandWidth; ++i) {
    x[i] *= factor;
  }
  return scale;
}

}  // namespace kvc
