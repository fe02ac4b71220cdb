// Matrices of factors in 8-bit integers, with one scale per coefficient of a latent: a number is
// (code + low / 256) * scale. A large coefficient thus keeps its precision beside small ones.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint.h"

namespace kvc {

// What counts the coefficients of a matrix: rows of one that makes latents, columns of one that rebuilds from them.
enum class CoefficientAxis : std::uint8_t { kNone, kRows, kColumns };

struct CoefficientCodes {
  at::Tensor codes;  // int8, as the matrix
  at::Tensor low;  // int8, of the first coefficients, which have 16 bits; undefined where none have
  at::Tensor scale;  // [coefficients] float32, positive
};
// `matrix`: float32 or float64, finite. The first `wide` coefficients get 16 bits. A coefficient that has a number 1,
// with no other above 127, keeps it exactly: channels that a latent holds as they are stay recognisable.
CoefficientCodes code_coefficients(const at::Tensor& matrix, CoefficientAxis axis,
                                   std::int64_t wide);
// The matrix in `dtype`, one block of rows at a time. On the CPU.
at::Tensor decode_coefficients(const CoefficientCodes& codes, CoefficientAxis axis,
                               at::ScalarType dtype);
// What is lost where all have 8 bits: the decoded matrix less `matrix`, in its dtype and on its device.
at::Tensor rounding_of(const at::Tensor& matrix, CoefficientAxis axis);

// Codes lie under the matrix's own name.
std::string scale_name(const std::string& matrix);
std::string low_name(const std::string& matrix);
// The shape of `low`.
std::vector<std::int64_t> low_shape(std::vector<std::int64_t> matrix, CoefficientAxis axis,
                                    std::int64_t wide);

// Codes of 8 bits as they are stored, and scales. Error naming a tensor that is missing or has another shape, codes of
// another type, or scales that are not positive and finite.
at::Tensor read_codes(const Checkpoint& checkpoint, const std::string& name,
                      const std::vector<std::int64_t>& shape);
at::Tensor read_scales(const Checkpoint& checkpoint, const std::string& name,
                       const std::vector<std::int64_t>& shape);

// A matrix of that shape in `dtype`, whether it is stored as codes or as numbers. Codes only where `axis` is given. Errors
// as of those.
at::Tensor load_coefficients(const Checkpoint& checkpoint, const std::string& name,
                             const std::vector<std::int64_t>& shape, CoefficientAxis axis,
                             at::ScalarType dtype);

}  // namespace kvc
