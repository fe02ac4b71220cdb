#include "model/row_products.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/error.h"
#include "model/element.h"
#include "model/fused_ops.h"
#include "model/kernels/bfloat16_rows.h"
#include "model/kernels/int8_product.h"
#include "model/kernels/weight_product.h"
#include "model/parallel.h"

namespace kvc {
namespace {

constexpr std::int64_t kWeightsPerShare = 65536;  // for less, threads cost more than they save
constexpr std::int64_t kOutputsTogether = 4;      // that the kernels sum

WeightElement element_of(at::ScalarType type) {
  return type == at::kBFloat16 ? WeightElement::kBFloat16
         : type == at::kHalf   ? WeightElement::kFloat16
                               : WeightElement::kFloat32;
}

// Rows of x in float32, padded with zeros: x itself where it is that already.
class WideRows {
 public:
  WideRows(const at::Tensor& x, std::int64_t first, std::int64_t count) {
    const std::int64_t in = x.size(1), padded = padded_channels(in);
    if (x.scalar_type() == at::kFloat && in == padded) {
      rows_ = x.const_data_ptr<float>() + first * x.stride(0);
      stride_ = x.stride(0);
      return;
    }
    memory_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(count * padded));
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "WideRows", [&] {
      for (std::int64_t row = 0; row < count; ++row) {
        const scalar_t* from = x.const_data_ptr<scalar_t>() + (first + row) * x.stride(0);
        float* to = memory_.get() + row * padded;
        std::transform(from, from + in, to, widen<scalar_t>);
        std::fill(to + in, to + padded, 0.0f);
      }
    });
    rows_ = memory_.get();
    stride_ = padded;
  }

  const float* operator[](std::int64_t row) const { return rows_ + row * stride_; }
  std::int64_t stride() const { return stride_; }

 private:
  std::unique_ptr<float[]> memory_;
  const float* rows_ = nullptr;
  std::int64_t stride_ = 0;
};

// y[first_row + row, begin .. end - 1] = sums[row] + bias, rounded.
template <typename T>
void store_sums(const float* sums, std::int64_t num_rows, std::int64_t begin, std::int64_t end,
                const at::Tensor& bias, std::int64_t stride, T* y) {
  const T* added = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
  for (std::int64_t row = 0; row < num_rows; ++row, sums += end - begin) {
    T* to = y + row * stride;
    for (std::int64_t output = begin; output < end; ++output) {
      const float sum = sums[output - begin];
      to[output] = narrow<T>(added != nullptr ? sum + widen(added[output]) : sum);
    }
  }
}

// product(first row, number of rows, first output, last output, sums), shared among threads.
template <typename Product>
void multiply_pieces(std::int64_t first_row, std::int64_t num_rows, std::int64_t in,
                     const at::Tensor& bias, at::Tensor& y, const Product& product) {
  const std::int64_t out = y.size(1);
  const std::int64_t groups = kWeightsPerShare / std::max<std::int64_t>(in, 1) / kOutputsTogether;
  const std::int64_t smallest = kOutputsTogether * std::max<std::int64_t>(1, groups);
  parallel_shares(out, smallest, [&](std::int64_t begin, std::int64_t end) {
    const auto sums =
        std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(num_rows * (end - begin)));
    product(begin, end, sums.get());
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, y.scalar_type(), "few_rows", [&] {
      store_sums(sums.get(), num_rows, begin, end, bias, out,
                 y.mutable_data_ptr<scalar_t>() + first_row * out);
    });
  });
}

bool is_float(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

}  // namespace

bool can_multiply_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType type = weight.scalar_type();
  return x.dim() == 2 && x.size(0) >= 1 && x.size(0) <= kMaxProductRows && is_float(type) &&
         x.scalar_type() == type && x.is_cpu() && weight.is_cpu() && weight.is_contiguous() &&
         x.stride(1) == 1 && x.size(1) > 0 && !wants_gradient(x) && !wants_gradient(weight) &&
         (!bias.defined() || (bias.scalar_type() == type && bias.is_cpu() && bias.is_contiguous() &&
                              !wants_gradient(bias)));
}

at::Tensor multiply_few_rows(const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& bias) {
  const std::int64_t num_rows = x.size(0), out = weight.size(0), in = weight.size(1);
  at::Tensor y = at::empty({num_rows, out}, x.options());
  if (x.scalar_type() == at::kBFloat16 && bfloat16_rows_are_fast()) {
    const auto numbers = [](const at::Tensor& tensor) {
      return static_cast<const std::uint16_t*>(tensor.const_data_ptr());
    };
    const Bfloat16Rows product{numbers(x), x.stride(0), num_rows, numbers(weight), in};
    multiply_pieces(0, num_rows, in, bias, y,
                    [&](std::int64_t begin, std::int64_t end, float* sums) {
                      bfloat16_rows(product, begin, end, sums);
                    });
    return y;
  }
  const WideRows rows(x, 0, num_rows);
  const WeightProductParams params{weight.const_data_ptr(),
                                   element_of(weight.scalar_type()),
                                   out,
                                   in,
                                   rows[0],
                                   rows.stride(),
                                   num_rows};
  multiply_pieces(0, num_rows, in, bias, y, [&](std::int64_t begin, std::int64_t end, float* sums) {
    weight_product(params, begin, end, sums);
  });
  return y;
}

at::Tensor multiply_few_rows_int8(const at::Tensor& x, const at::Tensor& codes,
                                  const at::Tensor& scales, const at::Tensor& bias) {
  const std::int64_t num_rows = x.size(0), in = x.size(1), groups = int8_groups(in);
  const Int8Matrix matrix{codes.const_data_ptr<std::int8_t>(),
                          static_cast<const std::uint16_t*>(scales.const_data_ptr()), codes.size(0),
                          in};
  at::Tensor y = at::empty({num_rows, codes.size(0)}, x.options());
  std::vector<std::int16_t> x_codes(
      static_cast<std::size_t>(kMaxProductRows * groups * kInt8Group));
  std::vector<float> x_scales(static_cast<std::size_t>(kMaxProductRows * groups));
  for (std::int64_t first = 0; first < num_rows; first += kMaxProductRows) {
    const std::int64_t count = std::min(kMaxProductRows, num_rows - first);
    const WideRows rows(x, first, count);
    for (std::int64_t row = 0; row < count; ++row) {
      quantize_int16_row(rows[row], in, x_codes.data() + row * groups * kInt8Group,
                         x_scales.data() + row * groups);
    }
    const Int8ProductParams params{matrix, x_codes.data(), x_scales.data(), count};
    multiply_pieces(first, count, in, bias, y,
                    [&](std::int64_t begin, std::int64_t end, float* sums) {
                      int8_product(params, begin, end, sums);
                    });
  }
  return y;
}

}  // namespace kvc
