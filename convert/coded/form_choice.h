// --form auto: which layers get which form of the keys' transform, from the variances of their coefficients alone.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/coded/coded_settings.h"

namespace kvc {

// A form that a layer may have.
struct FormOption {
  CodedForm form;
  std::vector<double> variances;  // of all coefficients of the layer's blocks, keys and values
  // Multiplications that rebuild a key from one coefficient per channel.
  double products = 0;
};
// By rising products. The last one is form full.
using FormOptions = std::vector<FormOption>;

// The expected error of a layer or model is that of an ideal code of normal coefficients: with the level t,
//   bits = sum_i max(0, log2(v_i / t) / 2),   error = sum_i min(v_i, t)
// Error of forms of equal bits. options[layer][choice[layer]], `bits` of a token in all layers.
double expected_error(const std::vector<FormOptions>& options,
                      const std::vector<std::size_t>& choice, double bits);

// The fastest form for all layers whose error is at most kMostError times that of form full.
inline constexpr double kMostError = 4;
std::vector<std::size_t> fastest_forms(const std::vector<FormOptions>& options, double bits);

// Forms that spend at most `products` on a key, in the mean over layers, where they save most bits. Each layer's way
// through its options is their upper convex hull of bits saved over products.
std::vector<std::size_t> share_products(const std::vector<FormOptions>& options, double bits,
                                        double products);

}  // namespace kvc
