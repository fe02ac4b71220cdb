// Weights as int8 codes with a float16 scale per 32 neighbours in a row: 8.5 bits each.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "model/linear.h"

namespace kvc {

// x W^T + b in x's type; no gradients. x: [num_tokens, in], codes and scales as in Linear, bias [out] of x's type
// or undefined. Few rows are multiplied with the codes; for more, and off the CPU, parts of the weight are expanded
// to x's dtype.
at::Tensor int8_linear(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales,
                       const at::Tensor& bias);
// Rows `ids` of such a weight with `columns` columns. [num_ids, columns]
at::Tensor int8_rows(const Linear& weight, const at::Tensor& ids, std::int64_t columns,
                     at::ScalarType type);

// All of such a weight, on its device. [out, columns]
at::Tensor widened_int8(const at::Tensor& codes, const at::Tensor& scales, std::int64_t columns,
                        at::ScalarType type);

// Codes and scales without values, of a weight of `shape` [..., out, in].
Linear empty_int8(const std::vector<std::int64_t>& shape);
// Quantises rows of a stored tensor (all axes but the last flattened) from `first_row` on into `target`,
// one at a time; the floats are never in memory together.
void load_int8(const Checkpoint& checkpoint, const std::string& name,
               const std::vector<std::int64_t>& shape, std::int64_t first_row,
               const Linear& target);

}  // namespace kvc
