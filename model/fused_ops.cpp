#include "model/fused_ops.h"

#include <ATen/Dispatch.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "model/element.h"
#include "model/kernels/gated_silu.h"
#include "model/parallel.h"

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

// `value` rounded to T's precision.
template <typename T>
float rounded(float value) {
  return widen(narrow<T>(value));
}

template <typename T>
float sum_of_squares(const T* x, std::int64_t size) {
  constexpr std::int64_t kLanes = 16;  // independent sums: they vectorise, and round less than one
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = widen(x[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (; i < size; ++i) {
    sums[i % kLanes] += widen(x[i]) * widen(x[i]);
  }
  float total = 0;
  for (const float sum : sums) {
    total += sum;
  }
  return total;
}

template <typename T, typename W>
void norm_row(const T* __restrict x, const W* __restrict weight, double eps, std::int64_t size,
              T* __restrict out) {
  const float mean = sum_of_squares(x, size) / static_cast<float>(size);
  const float scale = 1 / std::sqrt(mean + static_cast<float>(eps));
  for (std::int64_t i = 0; i < size; ++i) {
    out[i] = narrow<T>(widen(weight[i]) * rounded<W>(widen(x[i]) * scale));
  }
}

template <typename T>
void rotate_row(const T* __restrict x, const T* __restrict cos, const T* __restrict sin,
                std::int64_t half, T* __restrict first, T* __restrict second) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float x1 = widen(x[i]), x2 = widen(x[i + half]);
    const float c = widen(cos[i]), s = widen(sin[i]);
    first[i] = narrow<T>(rounded<T>(x1 * c) - rounded<T>(x2 * s));
    second[i] = narrow<T>(rounded<T>(x2 * c) + rounded<T>(x1 * s));
  }
}

template <typename Row>
void for_each_row(std::int64_t num_rows, std::int64_t size, const Row& row) {
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsPerThread / size);
  parallel_pieces(num_rows, grain, [&](std::int64_t begin, std::int64_t end) {
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
    auto* first = out.mutable_data_ptr<scalar_t>();
    const auto norm_rows = [&](const auto* weights) {
      for_each_row(x.numel() / rows.size, rows.size, [&](std::int64_t row) {
        norm_row(rows[row], weights, eps, rows.size, first + row * rows.size);
      });
    };
    if (weight.scalar_type() == at::kFloat) {
      norm_rows(weight.const_data_ptr<float>());
    } else {
      norm_rows(weight.const_data_ptr<scalar_t>());
    }
  });
  return out;
}

at::Tensor fused_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  const std::int64_t num_heads = x.size(1), half = cos.size(-1);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "fused_rotate", [&] {
    const Rows<scalar_t> rows(x);
    const auto* cosines = cos.const_data_ptr<scalar_t>();
    const auto* sines = sin.const_data_ptr<scalar_t>();
    auto* first = out.mutable_data_ptr<scalar_t>();
    for_each_row(x.size(0) * num_heads, rows.size, [&](std::int64_t row) {
      const std::int64_t table_row = row / num_heads * half;
      scalar_t* target = first + row * rows.size;
      rotate_row(rows[row], cosines + table_row, sines + table_row, half, target, target + half);
      std::copy(rows[row] + 2 * half, rows[row] + rows.size, target + 2 * half);
    });
  });
  return out;
}

bool can_fuse_gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  return can_fuse(gate) && can_fuse(up) && gate.dim() == 2 && gate.sizes() == up.sizes() &&
         gate.scalar_type() == at::kBFloat16 && up.scalar_type() == at::kBFloat16 &&
         gated_silu_is_fast();
}

at::Tensor fused_gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  const std::int64_t size = gate.size(1);
  const auto* gates = static_cast<const std::uint16_t*>(gate.const_data_ptr());
  const auto* ups = static_cast<const std::uint16_t*>(up.const_data_ptr());
  auto* first = static_cast<std::uint16_t*>(out.mutable_data_ptr());
  for_each_row(gate.size(0), size, [&](std::int64_t row) {
    gated_silu(gates + row * gate.stride(0), ups + row * up.stride(0), size, first + row * size);
  });
  return out;
}

}  // namespace kvc
