// The transform of a coded block, E and F (core/conversion_file.h), in 8-bit integers. Loading corrects for
// rounding: E is the left inverse of the rounded F, so kept coefficients rebuild their span exactly.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint.h"

namespace kvc {

// Blocks of more channels are not stored in 8 bits, because their inverses take too long.
inline constexpr std::int64_t kMostCodedBasisChannels = 1024;

// n channels, k coefficients. In coordinates y / channel_scale, columns of F are (decoder + decoder_low / 256) *
// decoder_scale, and rows of E span the same space as those of `encoder`. Rounding moves columns out of the span, which
// loses what is outside; the first columns, of the largest coefficients, therefore have 16 bits.
struct BasisCodes {
  at::Tensor decoder;        // [n, n] int8: F and directions that E ignores; [n, k] with `encoder`
  at::Tensor decoder_low;    // [n, wide columns] int8, or undefined
  at::Tensor decoder_scale;  // [columns of decoder] float32
  at::Tensor channel_scale;  // [n] float32, positive
  at::Tensor encoder;        // [k, n] int8 if that is smaller, else undefined

  // Tensors by their names in files.
  std::vector<std::pair<std::string, at::Tensor>> named() const;
};

// E F = I. [k, n] and [n, k], float64 or float32.
struct BasisTransform {
  at::Tensor encoder, decoder;
};

// One of named(): the table that what checks, estimates, writes and loads them goes by.
struct BasisCodeSpec {
  const char* name;
  std::vector<std::int64_t> shape;  // kAnySize: wide columns, and there only where there are any
  Dtype dtype;
  at::Tensor BasisCodes::*tensor;
};
inline constexpr std::int64_t kAnySize = -1;
std::vector<BasisCodeSpec> basis_code_specs(std::int64_t channels, std::int64_t coefficients);
// Bytes of named(), scales included.
std::int64_t basis_code_bytes(std::int64_t channels, std::int64_t coefficients,
                              std::int64_t wide_columns);

// What is rounded, whatever the number of wide columns.
struct BalancedBasis {
  at::Tensor channel_scale;  // as BasisCodes
  at::Tensor encoder;        // undefined where `columns` says what it is
  at::Tensor columns;        // F, completed to a square unless E is stored. float64
};
// 1 <= k <= n <= kMostCodedBasisChannels, wide_columns <= k.
BalancedBasis balanced_basis(const BasisTransform& transform);
BasisCodes code_basis(const BalancedBasis& basis, std::int64_t wide_columns);
// In float64. Error naming `name` if the codes have no inverse.
BasisTransform decode_basis(const BasisCodes& codes, std::int64_t coefficients,
                            const std::string& name);

// The tensor that every block in this form has.
std::string basis_code_name(const std::string& prefix);  // "kvconvert.coded.<b>."
// Error naming a tensor that is missing or has another shape or dtype, or scales that are not positive.
BasisCodes load_basis_codes(const Checkpoint& checkpoint, const std::string& prefix,
                            std::int64_t channels, std::int64_t coefficients);

}  // namespace kvc
