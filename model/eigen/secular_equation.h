// Eigenvalues and eigenvectors of diag(poles) + rho z z^T: the roots of the secular equation
//   1 / rho + sum z_i^2 / (d_i - x) = 0,
// one between neighbouring poles and one above the last (Bunch, Nielsen and Sorensen, 1978).
#pragma once

#include <cstdint>
#include <vector>

namespace kvc {

// A root as pole + shift, which keeps its distance to every pole to full relative precision.
struct SecularRoot {
  double origin = 0;  // the nearer of the poles beside it
  double shift = 0;   // never 0
  double value() const { return origin + shift; }
};

// poles strictly ascending, weights z_i^2 > 0, rho > 0.
struct SecularEquation {
  std::vector<double> poles;    // [count]
  std::vector<double> weights;  // [count]
  double rho = 0;

  std::int64_t size() const { return static_cast<std::int64_t>(poles.size()); }
};

// The root between poles `index` and index + 1, or above the last. Rational interpolation by a pole
// on either side, in a bracket that always shrinks.
SecularRoot solve_secular(const SecularEquation& equation, std::int64_t index);

// |z_i| of the problem whose eigenvalues are exactly `roots`: with it eigenvectors are orthogonal to
// rounding however close the roots (Gu and Eisenstat, 1995).
double secular_component(const std::vector<double>& poles, const std::vector<double>& origins,
                         const std::vector<double>& shifts, std::int64_t index);

}  // namespace kvc
