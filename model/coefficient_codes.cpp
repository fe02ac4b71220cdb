#include "model/coefficient_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/mapped_file.h"
#include "model/tensor_memory.h"
#include "model/weights.h"

namespace kvc {
namespace {

constexpr double kLargestCode = 127, kLowCodes = 256;
constexpr std::int64_t kSliceRows = 512;  // decoded at a time

std::int64_t axis_index(CoefficientAxis axis) { return axis == CoefficientAxis::kRows ? 0 : 1; }

// As a factor of a matrix.
at::Tensor along(const at::Tensor& scale, CoefficientAxis axis) {
  return scale.unsqueeze(1 - axis_index(axis));
}

// The smallest scale for numbers up to `largest` of which a whole multiple is 1 in float32.
float scale_with_one(double largest) {
  for (double steps = std::floor(kLargestCode / largest); steps >= 1; --steps) {
    const auto scale = static_cast<float>(1 / steps);
    if (static_cast<float>(steps * static_cast<double>(scale)) == 1.0F) {
      return scale;
    }
  }
  return static_cast<float>(largest / kLargestCode);
}

// [coefficients] float32, positive
at::Tensor scales(const at::Tensor& matrix, CoefficientAxis axis) {
  const std::int64_t others = 1 - axis_index(axis);
  const at::Tensor largest = matrix.abs().amax(others).to(at::kCPU, at::kDouble);
  const at::Tensor has_one = matrix.eq(1).any(others).cpu();
  at::Tensor scale = (largest / kLargestCode).to(at::kFloat);
  scale = at::where(scale > 0, scale, at::ones_like(scale));
  auto* value = scale.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < scale.size(0); ++i) {
    if (has_one[i].item<bool>()) {
      value[i] = scale_with_one(largest[i].item<double>());
    }
  }
  return scale.to(matrix.device());
}

at::Tensor rounded(const at::Tensor& multiples) {
  return multiples.round().clamp_(-kLargestCode, kLargestCode);
}

}  // namespace

CoefficientCodes code_coefficients(const at::Tensor& matrix, CoefficientAxis axis,
                                   std::int64_t wide) {
  CoefficientCodes codes;
  codes.scale = scales(matrix, axis);
  const at::Tensor multiples = matrix.to(at::kDouble) / along(codes.scale, axis);
  const at::Tensor high = rounded(multiples);
  // A wide coefficient is 256 high + low units of scale / 256. With high rounded to the nearest, low is -128 to 127; codes
  // are symmetric, so that -128 becomes -127.
  if (wide > 0) {
    const std::int64_t index = axis_index(axis);
    const at::Tensor fine = (multiples.narrow(index, 0, wide) * kLowCodes).round_();
    const at::Tensor of_wide = high.narrow(index, 0, wide);
    of_wide.copy_(((fine + kLowCodes / 2) / kLowCodes).floor().clamp_max(kLargestCode));
    codes.low =
        (fine - of_wide * kLowCodes).clamp_(-kLargestCode, kLargestCode).to(at::kChar).contiguous();
  }
  codes.codes = high.to(at::kChar).contiguous();
  return codes;
}

at::Tensor decode_coefficients(const CoefficientCodes& codes, CoefficientAxis axis,
                               at::ScalarType dtype) {
  at::Tensor matrix = empty_weight(codes.codes.sizes(), dtype);
  const bool by_rows = axis == CoefficientAxis::kRows;
  const std::int64_t rows = matrix.size(0);
  for (std::int64_t first = 0; first < rows; first += kSliceRows) {
    const std::int64_t count = std::min(kSliceRows, rows - first);
    at::Tensor part = codes.codes.narrow(0, first, count).to(at::kDouble);
    if (codes.low.defined()) {
      const std::int64_t wide_rows = std::clamp<std::int64_t>(codes.low.size(0) - first, 0, count);
      const at::Tensor low = codes.low.narrow(0, std::min(first, codes.low.size(0)), wide_rows);
      const at::Tensor wide =
          by_rows ? part.narrow(0, 0, wide_rows) : part.narrow(1, 0, codes.low.size(1));
      wide.add_(low.to(at::kDouble), 1 / kLowCodes);
    }
    const at::Tensor scale = by_rows ? codes.scale.narrow(0, first, count) : codes.scale;
    matrix.narrow(0, first, count).copy_(part.mul_(along(scale, axis)));
  }
  return matrix;
}

at::Tensor rounding_of(const at::Tensor& matrix, CoefficientAxis axis) {
  const at::Tensor scale = along(scales(matrix, axis), axis);
  return rounded(matrix / scale).mul_(scale).sub_(matrix);
}

std::string scale_name(const std::string& matrix) { return matrix + ".scale"; }
std::string low_name(const std::string& matrix) { return matrix + ".low"; }

std::vector<std::int64_t> low_shape(std::vector<std::int64_t> matrix, CoefficientAxis axis,
                                    std::int64_t wide) {
  matrix[static_cast<std::size_t>(axis_index(axis))] = wide;
  return matrix;
}

at::Tensor read_codes(const Checkpoint& checkpoint, const std::string& name,
                      const std::vector<std::int64_t>& shape) {
  const TensorInfo& info = checkpoint.info(name, shape);
  KVC_CHECK(info.dtype == Dtype::kI8, "{}: stored as {}, expected I8; export again", name,
            dtype_name(info.dtype));
  at::Tensor codes = at::empty(shape, at::kChar);
  const auto bytes = checkpoint.bytes(name);
  std::memcpy(codes.data_ptr(), bytes.data(), bytes.size());
  release_pages(bytes);
  return codes;
}

at::Tensor read_scales(const Checkpoint& checkpoint, const std::string& name,
                       const std::vector<std::int64_t>& shape) {
  at::Tensor scales = load_tensor(checkpoint, name, shape, at::kFloat);
  KVC_CHECK(scales.isfinite().logical_and(scales > 0).all().item<bool>(),
            "{}: a scale that is not positive and finite; export again", name);
  return scales;
}

at::Tensor load_coefficients(const Checkpoint& checkpoint, const std::string& name,
                             const std::vector<std::int64_t>& shape, CoefficientAxis axis,
                             at::ScalarType dtype) {
  if (axis == CoefficientAxis::kNone || checkpoint.info(name, shape).dtype != Dtype::kI8) {
    return load_tensor(checkpoint, name, shape, dtype);
  }
  const auto index = static_cast<std::size_t>(axis_index(axis));
  const std::string scale = scale_name(name), low = low_name(name);
  CoefficientCodes codes{.codes = read_codes(checkpoint, name, shape), .low = {}, .scale = {}};
  codes.scale = read_scales(checkpoint, scale, {shape[index]});
  if (checkpoint.contains(low)) {
    const std::vector<std::int64_t>& found = checkpoint.info(low).shape;
    const std::int64_t wide = found.size() == shape.size() ? found[index] : 0;
    KVC_CHECK(wide <= shape[index], "{}: {} coefficients, expected at most {}; export again", low,
              wide, shape[index]);
    codes.low = read_codes(checkpoint, low, low_shape(shape, axis, wide));
  }
  return decode_coefficients(codes, axis, dtype);
}

}  // namespace kvc
