// Full symmetric matrix to band form, A = Q1 S Q1^T: successive band reduction (Bischof, Lang and Sun,
// 2000), whose work is nearly all matrix products. Panel p's Householder vectors V, Q = I - V T V^T,
// eliminate what lies below the band in its kBandWidth columns; the rest becomes
//   Q^T A Q = A - V W^T - W V^T,   W = X - V (T^T V^T X) / 2,   X = A V T.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace kvc {

struct BandReduction {
  // [n, n] float64; panel p's V in its columns from p kBandWidth, rows from (p + 1) kBandWidth
  at::Tensor reflectors;
  std::vector<at::Tensor> factors;  // T of each panel, upper triangular [width, width] float64
  std::vector<double> band;         // columns as chase_kernel.h stores them, zero behind the matrix

  std::int64_t size() const { return reflectors.size(0); }
};

// `matrix` [n, n] float64, both triangles of its kSymmetricBlock diagonal blocks and all below them
// set, entries of at most 1; it is consumed.
BandReduction reduce_to_band(at::Tensor matrix);

constexpr std::int64_t kSymmetricBlock = 256;

// T of I - V T V^T = H_0 H_1 ..., H_i = I - scales[i] v_i v_i^T, from `products` V^T V [k, k].
at::Tensor reflector_factor(const at::Tensor& products, const double* scales);

}  // namespace kvc
