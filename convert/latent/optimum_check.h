// Proves that a factorisation is optimal: M's energy is the sum of its eigenvalues, each vector
// captures its eigenvalue's share, and the vectors are orthonormal.
#pragma once

#include <ATen/ATen.h>

namespace kvc {

// Upper bound of |squared error - dropped eigenvalues| / sum of all, for the projection of M on
// vectors E:
//   (| ||M||^2 - sum_i l_i | + sum_j | ||M e_j||^2 - l_j |) / sum_i l_i + max |E E^T - I|.
// `energy` is ||M||^2, `captured` [rank] float64 the measured ||M e_j||^2, `values` [n] float64 all
// eigenvalues l of M^T M, descending, `vectors` E [rank, n] float64.
double optimum_error(double energy, const at::Tensor& captured, const at::Tensor& values,
                     const at::Tensor& vectors);

}  // namespace kvc
