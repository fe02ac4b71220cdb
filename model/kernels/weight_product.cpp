#include "model/kernels/weight_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/weight_product.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "model/kernels/cpu_features.h"
#include "model/kernels/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void multiply(const WeightProductParams& params, std::int64_t first, std::int64_t last, float* y) {
  weight_product_reference(params, first, last, y);
}

#else

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
constexpr std::int64_t kLanes = hn::MaxLanes(Floats());
constexpr int kRows = 4;                  // of the matrix, whose sums are reduced together
constexpr int kX = kLanes >= 16 ? 4 : 2;  // rows of x at a time: their sums must fit the registers
constexpr int kUnroll = 4;
// How far ahead of its use memory is asked for. Hardware does not look past the end of a page, and rows
// that are read together confuse it.
constexpr std::int64_t kAheadBytes = 8192;

HWY_INLINE Vector load(const float* from) { return hn::LoadU(Floats(), from); }
template <class T>  // 16-bit floating point
HWY_INLINE Vector load(const T* from) {
  return hn::PromoteTo(Floats(), hn::LoadU(hn::Rebind<T, Floats>(), from));
}
// `count` numbers, then zeros.
template <class T>
HWY_INLINE Vector load_some(const T* from, std::int64_t count) {
  HWY_ALIGN T padded[kLanes] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(count) * sizeof(T));
  return load(padded);
}

// One row of the matrix times one row of x, not yet summed over lanes.
template <class T>
HWY_INLINE Vector multiply_row(const T* weights, const float* x, std::int64_t in) {
  constexpr std::int64_t kAhead = kAheadBytes / static_cast<std::int64_t>(sizeof(T));
  Vector sums[kUnroll];
  for (Vector& sum : sums) {
    sum = hn::Zero(Floats());
  }
  std::int64_t channel = 0;
  for (; channel + kUnroll * kLanes <= in; channel += kUnroll * kLanes) {
    fetch_ahead(weights + channel + kAhead, kUnroll * kLanes * sizeof(T));
    for (std::int64_t i = 0; i < kUnroll; ++i) {
      const std::int64_t at = channel + i * kLanes;
      sums[i] = hn::MulAdd(load(weights + at), load(x + at), sums[i]);
    }
  }
  for (; channel + kLanes <= in; channel += kLanes) {
    sums[0] = hn::MulAdd(load(weights + channel), load(x + channel), sums[0]);
  }
  if (channel < in) {
    const Vector rest = load_some(weights + channel, in - channel);
    sums[1] = hn::MulAdd(rest, load(x + channel), sums[1]);
  }
  return hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
}

// kRows rows of the matrix times kX rows of x. sums: [kX, kRows]
template <class T>
HWY_INLINE void multiply_tile(const T* const* rows, const float* const* x, std::int64_t in,
                              float* sums) {
  Vector total[kX * kRows], weights[kRows];
  for (Vector& sum : total) {
    sum = hn::Zero(Floats());
  }
  const auto add = [&](std::int64_t channel) HWY_ATTR {
    for (int j = 0; j < kX; ++j) {
      const Vector input = load(x[j] + channel);
      for (int i = 0; i < kRows; ++i) {
        total[j * kRows + i] = hn::MulAdd(weights[i], input, total[j * kRows + i]);
      }
    }
  };
  // For the rows that come next, which lie one after the other.
  const T* ahead = rows[0] + kRows * in + kAheadBytes / static_cast<std::int64_t>(sizeof(T));
  std::int64_t channel = 0;
  for (; channel + kLanes <= in; channel += kLanes) {
    fetch_ahead(ahead + kRows * channel, kRows * kLanes * sizeof(T));
    for (int i = 0; i < kRows; ++i) {
      weights[i] = load(rows[i] + channel);
    }
    add(channel);
  }
  if (channel < in) {
    for (int i = 0; i < kRows; ++i) {
      weights[i] = load_some(rows[i] + channel, in - channel);
    }
    add(channel);
  }
  for (int i = 0; i < kX * kRows; i += 4) {
    store_sums(total + i, sums + i);
  }
}

// kRows rows of the matrix times all rows of x. sums: [kMaxProductRows, kRows]
template <class T>
HWY_INLINE void multiply_rows(const T* const* rows, const WeightProductParams& params,
                              float* sums) {
  if (params.num_rows == 1) {
    Vector total[kRows];
    for (int i = 0; i < kRows; ++i) {
      total[i] = multiply_row(rows[i], params.x, params.in);
    }
    return store_sums(total, sums);
  }
  for (std::int64_t begin = 0; begin < params.num_rows; begin += kX) {
    const float* x[kX];
    for (std::int64_t j = 0; j < kX; ++j) {
      x[j] = params.x + std::min(begin + j, params.num_rows - 1) * params.x_stride;
    }
    multiply_tile(rows, x, params.in, sums + begin * kRows);
  }
}

// Rows past `last` are computed as the last one, and dropped.
template <class T>
void multiply_typed(const WeightProductParams& params, std::int64_t first, std::int64_t last,
                    float* y) {
  const T* weight = static_cast<const T*>(params.weight);
  float sums[kMaxProductRows * kRows];
  for (std::int64_t output = first; output < last; output += kRows) {
    const T* rows[kRows];
    for (std::int64_t i = 0; i < kRows; ++i) {
      rows[i] = weight + std::min(output + i, last - 1) * params.in;
    }
    multiply_rows(rows, params, sums);
    for (std::int64_t j = 0; j < params.num_rows; ++j) {
      std::copy_n(sums + j * kRows, std::min<std::int64_t>(kRows, last - output),
                  y + j * (last - first) + output - first);
    }
  }
}

void multiply(const WeightProductParams& params, std::int64_t first, std::int64_t last, float* y) {
  switch (params.element) {
    case WeightElement::kFloat32:
      return multiply_typed<float>(params, first, last, y);
    case WeightElement::kBFloat16:
      return multiply_typed<hwy::bfloat16_t>(params, first, last, y);
    case WeightElement::kFloat16:
      return multiply_typed<hwy::float16_t>(params, first, last, y);
  }
}

#endif

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(multiply);

void weight_product(const WeightProductParams& params, std::int64_t first, std::int64_t last,
                    float* y) {
  HWY_DYNAMIC_DISPATCH(multiply)(params, first, last, y);
}

}  // namespace kvc
#endif  // HWY_ONCE
