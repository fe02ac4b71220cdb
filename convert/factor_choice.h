// Which matrices of factors --factor-dtype auto stores in 8 bits (model/coefficient_codes.h), and how many of their
// coefficients get 16. Decided while the calibration's statistics are at hand.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvc {

// What one matrix may add to the squared error that the conversion leaves. Latents are made by one and read by
// another, so divergence grows by at most about 2 %.
inline constexpr double kMostAddedError = 0.01;

// Coefficients with 16 bits, or nothing: the matrix is not stored in 8 bits.
using WideCoefficients = std::optional<std::int64_t>;

// `added` [parts, coefficients] float64: what each coefficient adds to the squared error of a part (a layer's keys, its
// values) where it has 8 bits. `error` [parts] float64: the part's own. Nothing if all would need 16 bits.
WideCoefficients wide_coefficients(const at::Tensor& added, const at::Tensor& error);
// For a matrix that serves two purposes.
WideCoefficients both(const WideCoefficients& a, const WideCoefficients& b);

// The pair that makes latents h = E u and reads y ~ D h. Rounding errors of different coefficients are independent.
struct PairChoice {
  WideCoefficients encoder, decoder;
};
// Tokens of one layer: `inputs` u [num_tokens, columns of E], `keys` and `values` y [num_tokens, rows], which follow from
// D's rows from `first_row` on. float32. Values may be undefined.
struct LayerSample {
  at::Tensor inputs, keys, values;
  std::int64_t first_row = 0;
};
PairChoice choose_pair(const at::Tensor& encoder, const at::Tensor& decoder,
                       const std::vector<LayerSample>& layers);

// The same for principal directions, from statistics.
struct BasisNoise {
  at::Tensor encoder,
      decoder;  // [rank] float64: what 8 bits of each coefficient add to the squared error in the metric
};
// `eigenvalues` [rank] float64 of the coefficients of E [rank, n] and F [n, rank]; covariance and metric [n, n] float64,
// the metric undefined for the identity (convert/run_statistics.h).
BasisNoise basis_noise(const at::Tensor& encoder, const at::Tensor& decoder,
                       const at::Tensor& eigenvalues, const at::Tensor& covariance,
                       const at::Tensor& metric, at::Device device);
// For the first `rank` of them. `error`: of the coefficients that are dropped.
PairChoice choose_pair(const BasisNoise& noise, std::int64_t rank, double error);

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
// Appends what tells the export of the choice, if there is one.
void add_choice(NamedTensors& tensors, const std::string& matrix, const WideCoefficients& wide);

}  // namespace kvc
