// The quantiser of coded coefficients: with b bits and step s,
//   code = clamp(floor(z / s), -2^(b-1), 2^(b-1) - 1), value (code + 1/2) s;
// no bits mean value 0. In a block with gains every token picks the factor in kCodeGains for all of its
// steps that gives the least error.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <vector>

namespace kvc {

inline constexpr std::array<double, 8> kCodeGains = {
    0.5, 0.70710678118654752, 1, 1.41421356237309505, 2, 4, 8, 16};

// Values of coefficients [k, num_tokens] float32 after coding. steps [k, 1] or [k, num_tokens]; `bits` >= 1.
at::Tensor quantised(const at::Tensor& coefficients, const at::Tensor& steps, int bits);

// Step and mean squared error of every coefficient for every width.
struct WidthCurves {
  std::vector<int> widths;  // ascending, from 0
  at::Tensor steps;         // [num_widths, n] float64; 0 for no bits
  at::Tensor distortions;   // [num_widths, n] float64; for no bits the mean square
};
// Steps are each width's Gaussian optimum times the factor from 0.7 to 3.2 that is best for the samples.
// coefficients [n, num_samples] float32, on any device; the curves are on the CPU.
WidthCurves measure_widths(const at::Tensor& coefficients, const std::vector<int>& widths);

// Mean over tokens of the summed squared error of coefficients coded with `bits` and `steps` (each [k],
// in any order; 0 bits allowed). coefficients [k, num_tokens] float32, on any device
double coding_error(const at::Tensor& coefficients, const std::vector<int>& bits,
                    const at::Tensor& steps, bool gain);

// Bits of every coefficient of the model's coded blocks.
struct BitAllocation {
  std::vector<std::vector<int>> bits;  // [num_blocks][n]
  std::int64_t total = 0;              // of one token
  double price = 0;  // error that each of the last bits saved; 0 if every coefficient has all
};

// Marginal allocation: takes the steps of every coefficient's lower convex hull of distortions in order of
// error saved per bit until `budget` is spent, skipping steps that no longer fit. Total distortion is
// minimal for the bits spent if distortions are convex. Every block's first coefficient gets a width before
// all others.
BitAllocation allocate_bits(const std::vector<WidthCurves>& blocks, std::int64_t budget);

}  // namespace kvc
