#include "model/fused_ops.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

namespace kvc {
namespace {

constexpr std::int64_t kElementsPerThread = 32768;

// Rows of a tensor of two or three axes whose last axis is contiguous.
template <typename T>
struct Rows {
  explicit Rows(const at::Tensor& x)
      : first(x.const_data_ptr<T>()),
        size(x.size(-1)),
        inner(x.dim() == 3 ? x.size(1) : 1),
        outer_stride(x.dim() >= 2 ? x.stride(0) : 0),
        inner_stride(x.dim() == 3 ? x.stride(1) : 0) {}
  const T* operator[](std::int64_t row) const {
    return first + row / inner * outer_stride + row % inner * inner_stride;
  }
  const T* first;
  std::int64_t size, inner, outer_stride, inner_stride;
};

template <typename T>
float sum_of_squares(const T* x, std::int64_t size) {
  constexpr std::int64_t kLanes = 16;  // independent sums: they vectorise, and round less than one
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<float>(x[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (; i < size; ++i) {
    sums[i % kLanes] += static_cast<float>(x[i]) * static_cast<float>(x[i]);
  }
  float total = 0;
  for (const float sum : sums) {
    total += sum;
  }
  return total;
}

template <typename T>
void norm_row(const T* x, const T* weight, double eps, std::int64_t size, T* out) {
  const float mean = sum_of_squares(x, size) / static_cast<float>(size);
  const float scale = 1 / std::sqrt(mean + static_cast<float>(eps));
  for (std::int64_t i = 0; i < size; ++i) {
    const T normed = static_cast<T>(static_cast<float>(x[i]) * scale);
    out[i] = static_cast<T>(static_cast<float>(weight[i]) * static_cast<float>(normed));
  }
}

template <typename T>
float rounded_product(T a, T b) {
  return static_cast<float>(static_cast<T>(static_cast<float>(a) * static_cast<float>(b)));
}

template <typename T>
void rotate_row(const T* x, const T* cos, const T* sin, std::int64_t half, T* out) {
  for (std::int64_t i = 0; i < half; ++i) {
    const T first = x[i], second = x[i + half];
    out[i] = static_cast<T>(rounded_product(first, cos[i]) - rounded_product(second, sin[i]));
    out[i + half] =
        static_cast<T>(rounded_product(second, cos[i]) + rounded_product(first, sin[i]));
  }
}

template <typename Row>
void for_each_row(std::int64_t num_rows, std::int64_t size, const Row& row) {
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsPerThread / size);
  at::parallel_for(0, num_rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      row(index);
    }
  });
}

}  // namespace

bool wants_gradient(const at::Tensor& x) {
  return x.requires_grad() && c10::GradMode::is_enabled();
}

bool can_fuse(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cpu() && !wants_gradient(x) && x.numel() > 0 && x.dim() >= 1 && x.dim() <= 3 &&
         x.stride(-1) == 1 && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

at::Tensor fused_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "fused_rms_norm", [&] {
    const Rows<scalar_t> rows(x);
    const auto* weights = weight.const_data_ptr<scalar_t>();
    auto* first = out.mutable_data_ptr<scalar_t>();
    for_each_row(x.numel() / rows.size, rows.size, [&](std::int64_t row) {
      norm_row(rows[row], weights, eps, rows.size, first + row * rows.size);
    });
  });
  return out;
}

at::Tensor fused_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  const std::int64_t num_heads = x.size(1), half = x.size(2) / 2;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "fused_rotate", [&] {
    const Rows<scalar_t> rows(x);
    const auto* cosines = cos.const_data_ptr<scalar_t>();
    const auto* sines = sin.const_data_ptr<scalar_t>();
    auto* first = out.mutable_data_ptr<scalar_t>();
    for_each_row(x.size(0) * num_heads, rows.size, [&](std::int64_t row) {
      const std::int64_t table_row = row / num_heads * half;
      rotate_row(rows[row], cosines + table_row, sines + table_row, half, first + row * rows.size);
    });
  });
  return out;
}

}  // namespace kvc
