#include "model/int8_linear.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "core/error.h"
#include "core/mapped_file.h"
#include "model/element.h"
#include "model/fused_ops.h"
#include "model/kernels/int8_matrix.h"
#include "model/linear.h"
#include "model/parallel.h"
#include "model/row_products.h"
#include "model/tensor_memory.h"
#include "model/weights.h"

namespace kvc {
namespace {

constexpr std::int64_t kFewRows = 32;  // up to here turning the weight into x's type costs more
constexpr std::int64_t kTileWeights = std::int64_t{1} << 20;  // so few that they stay in a cache

WeightElement checked_element_of(at::ScalarType type) {
  KVC_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf,
            "int8 weights: no products in {}; use float32, bfloat16 or float16",
            c10::toString(type));
  return type == at::kBFloat16 ? WeightElement::kBFloat16
         : type == at::kHalf   ? WeightElement::kFloat16
                               : WeightElement::kFloat32;
}

Int8Matrix matrix_of(const at::Tensor& codes, const at::Tensor& scales, std::int64_t in) {
  return {codes.const_data_ptr<std::int8_t>(),
          static_cast<const std::uint16_t*>(scales.const_data_ptr()), codes.size(0), in};
}

// tile = rows first .. first + tile.size(0) - 1, in the tile's type.
void dequantize(const Int8Matrix& matrix, std::int64_t first, at::Tensor& tile) {
  auto* to = static_cast<std::byte*>(tile.mutable_data_ptr());
  const std::size_t row_bytes = static_cast<std::size_t>(matrix.in) * tile.element_size();
  parallel_pieces(tile.size(0), /*grain=*/32, [&](std::int64_t begin, std::int64_t end) {
    dequantize_int8(matrix, first + begin, first + end, checked_element_of(tile.scalar_type()),
                    to + static_cast<std::size_t>(begin) * row_bytes);
  });
}

at::Tensor multiply_in_parts(const at::Tensor& x, const Int8Matrix& matrix,
                             const at::Tensor& bias) {
  const std::int64_t rows =
      std::min(matrix.out, std::max<std::int64_t>(1, kTileWeights / matrix.in));
  const AllThreads threads;  // once for all parts
  const at::ScalarType type = has_fast_products(x.scalar_type()) ? x.scalar_type() : at::kFloat;
  const at::Tensor of_type = x.to(type), bias_of_type = bias.defined() ? bias.to(type) : bias;
  const at::Tensor memory = at::empty({rows, matrix.in}, x.options().dtype(type));
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < matrix.out; first += rows) {
    const std::int64_t count = std::min(rows, matrix.out - first);
    at::Tensor tile = memory.narrow(0, 0, count);
    dequantize(matrix, first, tile);
    parts.push_back(
        float_linear(of_type, tile, bias.defined() ? bias_of_type.narrow(0, first, count) : bias)
            .to(x.scalar_type()));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, -1);
}

// One row of stored numbers, which need not be aligned, in float32.
template <typename T>
void widen_row(const std::byte* from, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = widen(value);
  }
}

void widen_row(Dtype dtype, const std::byte* from, std::span<float> to) {
  switch (dtype) {
    case Dtype::kF64:
      return widen_row<double>(from, to);
    case Dtype::kBF16:
      return widen_row<c10::BFloat16>(from, to);
    case Dtype::kF16:
      return widen_row<c10::Half>(from, to);
    default:
      return widen_row<float>(from, to);
  }
}

// Off the CPU: parts of the weight in x's type.
at::Tensor multiply_widened(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales,
                            const at::Tensor& bias) {
  constexpr std::int64_t kPartWeights = std::int64_t{1} << 26;
  const std::int64_t rows = std::max<std::int64_t>(1, kPartWeights / codes.size(1));
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < codes.size(0); first += rows) {
    const std::int64_t count = std::min(rows, codes.size(0) - first);
    parts.push_back(
        at::linear(x, widened_int8(codes.narrow(0, first, count), scales.narrow(0, first, count),
                                   x.size(1), x.scalar_type())));
  }
  const at::Tensor product = parts.size() == 1 ? parts.front() : at::cat(parts, -1);
  return bias.defined() ? product + bias : product;
}

}  // namespace

at::Tensor widened_int8(const at::Tensor& codes, const at::Tensor& scales, std::int64_t columns,
                        at::ScalarType type) {
  return (codes.unflatten(-1, {-1, kInt8Group}).to(at::kFloat) *
          scales.to(at::kFloat).unsqueeze(-1))
      .flatten(-2)
      .narrow(-1, 0, columns)
      .to(type);
}

at::Tensor int8_linear(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales,
                       const at::Tensor& bias) {
  KVC_CHECK(!wants_gradient(x), "int8 weights have no gradients; load the model with its own type");
  checked_element_of(x.scalar_type());
  KVC_CHECK(int8_groups(x.size(-1)) == scales.size(-1),
            "{} channels do not go with a weight of {} groups of {}", x.size(-1), scales.size(-1),
            kInt8Group);
  KVC_CHECK(x.device() == codes.device(), "rows on {} do not go with a weight on {}",
            x.device().str(), codes.device().str());
  if (!x.is_cpu()) {
    return multiply_widened(x, codes, scales, bias);
  }
  const at::Tensor rows = x.contiguous();
  if (rows.size(0) <= kFewRows) {
    return multiply_few_rows_int8(rows, codes, scales, bias);
  }
  return can_multiply_bfloat16_int8(rows)
             ? multiply_bfloat16_int8(rows, codes, scales, bias)
             : multiply_in_parts(rows, matrix_of(codes, scales, x.size(1)), bias);
}

at::Tensor int8_rows(const Linear& weight, const at::Tensor& ids, std::int64_t columns,
                     at::ScalarType type) {
  if (!weight.weight.is_cpu()) {
    return widened_int8(weight.weight.index_select(0, ids), weight.scales.index_select(0, ids),
                        columns, type);
  }
  const Int8Matrix matrix = matrix_of(weight.weight, weight.scales, columns);
  at::Tensor rows = at::empty({ids.size(0), columns}, at::TensorOptions(type));
  auto* to = static_cast<std::byte*>(rows.mutable_data_ptr());
  const at::Tensor contiguous_ids = ids.contiguous();
  for (const std::int64_t id :
       std::span(contiguous_ids.const_data_ptr<std::int64_t>(), contiguous_ids.numel())) {
    KVC_CHECK(id >= 0 && id < matrix.out, "token id {} is outside the vocabulary of {}", id,
              matrix.out);
    dequantize_int8(matrix, id, id + 1, checked_element_of(type), to);
    to += static_cast<std::size_t>(columns) * rows.element_size();
  }
  return rows;
}

Linear empty_int8(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> codes = shape, scales = shape;
  scales.back() = int8_groups(shape.back());
  codes.back() = scales.back() * kInt8Group;
  return {empty_weight(codes, at::kChar), {}, empty_weight(scales, at::kHalf)};
}

void load_int8(const Checkpoint& checkpoint, const std::string& name,
               const std::vector<std::int64_t>& shape, std::int64_t first_row,
               const Linear& target) {
  const Dtype dtype = checkpoint.info(name, shape).dtype;
  const auto columns = static_cast<std::size_t>(shape.back());
  const std::size_t row_bytes = columns * c10::elementSize(scalar_type(dtype, name));
  const std::int64_t groups = target.scales.size(-1);
  const std::int64_t num_rows = target.scales.numel() / groups;
  const std::span<const std::byte> bytes =
      checkpoint.bytes(name).subspan(static_cast<std::size_t>(first_row) * row_bytes,
                                     static_cast<std::size_t>(num_rows) * row_bytes);
  auto* codes = target.weight.mutable_data_ptr<std::int8_t>();
  auto* scales = static_cast<std::uint16_t*>(target.scales.mutable_data_ptr());
  parallel_pieces(num_rows, /*grain=*/32, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(columns);
    for (std::int64_t index = begin; index < end; ++index) {
      widen_row(dtype, bytes.data() + static_cast<std::size_t>(index) * row_bytes, row);
      KVC_CHECK(
          quantize_int8_row(row.data(), shape.back(), codes + index * groups * kInt8Group,
                            scales + index * groups),
          "{}: row {} holds a weight that is not finite or above {} and so no int8 scale; load "
          "it without --weight-dtype",
          name, first_row + index, 8'300'000);
    }
  });
  release_pages(bytes);
}

}  // namespace kvc
