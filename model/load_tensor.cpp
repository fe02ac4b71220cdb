#include <span>

#include "core/error.h"
#include "core/mapped_file.h"
#include "model/int8_linear.h"
#include "model/parallel.h"
#include "model/tensor_memory.h"
#include "model/weights.h"

namespace kvc {

at::ScalarType scalar_type(Dtype dtype, const std::string& tensor) {
  switch (dtype) {
    case Dtype::kF64:
      return at::kDouble;
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kBF16:
      return at::kBFloat16;
    case Dtype::kF16:
      return at::kHalf;
    default:
      fail("{}: stored as {}; weights must be F64, F32, BF16 or F16", tensor, dtype_name(dtype));
  }
}

Dtype dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return Dtype::kF64;
    case at::kFloat:
      return Dtype::kF32;
    case at::kBFloat16:
      return Dtype::kBF16;
    case at::kHalf:
      return Dtype::kF16;
    case at::kLong:
      return Dtype::kI64;
    case at::kInt:
      return Dtype::kI32;
    case at::kChar:
      return Dtype::kI8;
    default:
      fail("tensors of type {} cannot be stored", c10::toString(type));
  }
}

at::ScalarType parse_scalar_type(const std::string& name) {
  for (const auto& [known, type] :
       {std::pair("float32", at::kFloat), std::pair("bfloat16", at::kBFloat16),
        std::pair("float16", at::kHalf)}) {
    if (name == known) {
      return type;
    }
  }
  fail_usage("dtype \"{}\" is not supported; supported: float32, bfloat16, float16", name);
}

namespace {

// Bytes of the file as a tensor of `sizes`.
at::Tensor copy_bytes(std::span<const std::byte> bytes, at::IntArrayRef sizes,
                      at::ScalarType stored, at::ScalarType dtype, const std::string& name) {
  at::Tensor tensor =
      stored == dtype ? empty_weight(sizes, stored) : at::empty(sizes, at::TensorOptions(stored));
  KVC_CHECK(tensor.nbytes() == bytes.size(), "{}: {} bytes; expected {}", name, bytes.size(),
            tensor.nbytes());
  copy_in_parallel(tensor.data_ptr(), bytes.data(), bytes.size());
  release_pages(bytes);
  return stored == dtype ? tensor : empty_weight(sizes, dtype).copy_(tensor);
}

}  // namespace

at::Tensor load_tensor(const Checkpoint& checkpoint, const std::string& name,
                       const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  const at::ScalarType stored = scalar_type(checkpoint.info(name, shape).dtype, name);
  return copy_bytes(checkpoint.bytes(name), shape, stored, dtype, name);
}

at::Tensor load_rows(const Checkpoint& checkpoint, const ProjectionRows& rows, std::int64_t columns,
                     at::ScalarType dtype) {
  const TensorInfo& info = checkpoint.info(rows.tensor, {rows.tensor_rows, columns});
  const at::ScalarType stored = scalar_type(info.dtype, rows.tensor);
  const std::size_t row_bytes = c10::elementSize(stored) * static_cast<std::size_t>(columns);
  const std::span<const std::byte> bytes =
      checkpoint.bytes(rows.tensor)
          .subspan(static_cast<std::size_t>(rows.first_row) * row_bytes,
                   static_cast<std::size_t>(rows.num_rows) * row_bytes);
  return copy_bytes(bytes, {rows.num_rows, columns}, stored, dtype, rows.tensor);
}

Linear load_weight(const Checkpoint& checkpoint, const std::string& name,
                   const std::vector<std::int64_t>& shape, at::ScalarType dtype, WeightType type) {
  if (type == WeightType::kFloat) {
    return {load_tensor(checkpoint, name, shape, dtype), {}};
  }
  Linear weight = empty_int8(shape);
  load_int8(checkpoint, name, shape, /*first_row=*/0, weight);
  return weight;
}

Linear load_weight_rows(const Checkpoint& checkpoint, const ProjectionRows& rows,
                        std::int64_t columns, at::ScalarType dtype, WeightType type) {
  if (type == WeightType::kFloat) {
    return {load_rows(checkpoint, rows, columns, dtype), {}};
  }
  Linear weight = empty_int8({rows.num_rows, columns});
  load_int8(checkpoint, rows.tensor, {rows.tensor_rows, columns}, rows.first_row, weight);
  return weight;
}

namespace {

// Rounding to 11 bits leaves less than a tenth of this; what is lost below float16's smallest numbers adds to it.
constexpr double kMostError = 1e-6;

}  // namespace

bool half_holds(const at::Tensor& matrix) {
  const at::Tensor rounded = matrix.to(at::kHalf).to(at::kDouble);
  if (!rounded.isfinite().all().item<bool>()) {
    return false;
  }
  const at::Tensor exact = matrix.to(at::kDouble);
  const at::Tensor error = (rounded - exact).square(), energy = exact.square();
  for (const std::int64_t axis : {0, 1}) {
    if ((error.sum(axis) > kMostError * energy.sum(axis)).any().item<bool>()) {
      return false;
    }
  }
  return true;
}

at::Tensor to_half_or_float(const at::Tensor& matrix) {
  return matrix.to(half_holds(matrix) ? at::kHalf : at::kFloat).contiguous();
}

}  // namespace kvc
