// Sums and products over the poles of a secular equation: plain doubles, vectorised.
#pragma once

#include <cstdint>

namespace kvc {

struct PoleSums {
  double value = 0;  // sum of w_i / (d_i - x)
  double slope = 0;  // sum of w_i / (d_i - x)^2
};

// x = origin + shift, so that no difference to a pole cancels. `poles`, `weights` [count].
PoleSums sum_poles(const double* poles, const double* weights, std::int64_t count, double origin,
                   double shift);

// The product of (origins_j + shifts_j - pole) / (poles_j - pole) over j in [0, count).
double multiply_ratios(const double* poles, const double* origins, const double* shifts,
                       std::int64_t count, double pole);

// vector_i = weights_i / (poles_i - x), of norm 1.
void fill_vector(const double* poles, const double* weights, std::int64_t count, double origin,
                 double shift, double* vector);

}  // namespace kvc
