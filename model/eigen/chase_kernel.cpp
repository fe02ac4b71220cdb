#include "model/eigen/chase_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/eigen/chase_kernel.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<double, 8>;
using V = hn::Vec<D>;
constexpr D kTag;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(D()));
constexpr std::int64_t kStrip = 8;  // columns of a diagonal block taken together
constexpr std::int64_t kVectors = kBandWidth / kLanes;
constexpr std::int64_t kChunk = kVectors < 8 ? kVectors : 8;  // vectors held in registers

HWY_INLINE double sum(V v) { return hn::GetLane(hn::SumOfLanes(kTag, v)); }

// y += the part of D v that columns `first` to `first` + 7 give within their own rows: their
// triangle and its mirror image. dots[i] collects column i's products with v below the diagonal.
HWY_INLINE void multiply_triangle(const double* block, const double* v, std::int64_t first,
                                  double* y, V* dots) {
  for (std::int64_t r = 0; r < kStrip; r += kLanes) {
    const V row = hn::Iota(kTag, static_cast<double>(r));
    const V v_row = hn::LoadU(kTag, v + first + r);
    V y_row = hn::LoadU(kTag, y + first + r);
    for (std::int64_t c = 0; c < kStrip; ++c) {
      const V column = hn::Set(kTag, static_cast<double>(c));
      const V a = hn::LoadU(kTag, block + (first + c) * kBandStride + first + r);
      y_row = hn::MulAdd(hn::IfThenElseZero(hn::Ge(row, column), a), hn::Set(kTag, v[first + c]),
                         y_row);
      dots[c] = hn::MulAdd(hn::IfThenElseZero(hn::Gt(row, column), a), v_row, dots[c]);
    }
    hn::StoreU(y_row, kTag, y + first + r);
  }
}

// y = D v, of which the lower triangle is stored.
HWY_INLINE void multiply_diagonal(const double* block, const double* v, double* y) {
  for (std::int64_t r = 0; r < kBandWidth; ++r) {
    y[r] = 0;
  }
  for (std::int64_t first = 0; first < kBandWidth; first += kStrip) {
    V dots[kStrip];
    HWY_UNROLL(8)
    for (std::int64_t c = 0; c < kStrip; ++c) {
      dots[c] = hn::Zero(kTag);
    }
    multiply_triangle(block, v, first, y, dots);
    for (std::int64_t r = first + kStrip; r < kBandWidth; r += kLanes) {
      const V v_row = hn::LoadU(kTag, v + r);
      V even = hn::LoadU(kTag, y + r), odd = hn::Zero(kTag);
      HWY_UNROLL(8)
      for (std::int64_t c = 0; c < kStrip; ++c) {
        const V a = hn::LoadU(kTag, block + (first + c) * kBandStride + r);
        V& y_row = c % 2 == 0 ? even : odd;
        y_row = hn::MulAdd(a, hn::Set(kTag, v[first + c]), y_row);
        dots[c] = hn::MulAdd(a, v_row, dots[c]);
      }
      hn::StoreU(hn::Add(even, odd), kTag, y + r);
    }
    HWY_UNROLL(8)
    for (std::int64_t c = 0; c < kStrip; ++c) {
      y[first + c] += sum(dots[c]);
    }
  }
}

// D - v w^T - w v^T with w = scale D v - (scale^2 / 2) (v^T D v) v.
void reflect_diagonal(double* band, std::int64_t row, const double* v, double scale) {
  double* block = band + row * kBandStride + row;
  HWY_ALIGN double w[kBandWidth];
  multiply_diagonal(block, v, w);
  V product = hn::Zero(kTag);
  for (std::int64_t r = 0; r < kBandWidth; r += kLanes) {
    product = hn::MulAdd(hn::LoadU(kTag, v + r), hn::LoadU(kTag, w + r), product);
  }
  const V shift = hn::Set(kTag, -0.5 * scale * scale * sum(product));
  for (std::int64_t r = 0; r < kBandWidth; r += kLanes) {
    const V scaled = hn::Mul(hn::Set(kTag, scale), hn::LoadU(kTag, w + r));
    hn::StoreU(hn::MulAdd(shift, hn::LoadU(kTag, v + r), scaled), kTag, w + r);
  }
  for (std::int64_t c = 0; c < kBandWidth; ++c) {
    double* column = block + c * kBandStride;
    const V v_column = hn::Set(kTag, v[c]), w_column = hn::Set(kTag, w[c]);
    for (std::int64_t r = c / kLanes * kLanes; r < kBandWidth; r += kLanes) {
      const V a = hn::NegMulAdd(hn::LoadU(kTag, v + r), w_column, hn::LoadU(kTag, column + r));
      hn::StoreU(hn::NegMulAdd(hn::LoadU(kTag, w + r), v_column, a), kTag, column + r);
    }
  }
}

// u = scale B v
HWY_INLINE void multiply_block(const double* block, const double* v, double scale, double* u) {
  for (std::int64_t first = 0; first < kVectors; first += kChunk) {
    V sums[kChunk];
    HWY_UNROLL(8)
    for (std::int64_t i = 0; i < kChunk; ++i) {
      sums[i] = hn::Zero(kTag);
    }
    for (std::int64_t c = 0; c < kBandWidth; ++c) {
      const V v_column = hn::Set(kTag, v[c]);
      const double* column = block + c * kBandStride + first * kLanes;
      HWY_UNROLL(8)
      for (std::int64_t i = 0; i < kChunk; ++i) {
        sums[i] = hn::MulAdd(hn::LoadU(kTag, column + i * kLanes), v_column, sums[i]);
      }
    }
    HWY_UNROLL(8)
    for (std::int64_t i = 0; i < kChunk; ++i) {
      hn::StoreU(hn::Mul(hn::Set(kTag, scale), sums[i]), kTag, u + (first + i) * kLanes);
    }
  }
}

void chase_block(double* band, std::int64_t row, const double* v, double scale, double* next_v,
                 double* next_scale) {
  double* block = band + row * kBandStride + row + kBandWidth;
  HWY_ALIGN double u[kBandWidth];
  multiply_block(block, v, scale, u);
  for (std::int64_t r = 0; r < kBandWidth; ++r) {
    next_v[r] = block[r] - u[r];  // v[0] = 1
    block[r] = 0;
  }
  *next_scale = make_reflector(next_v, block);
  for (std::int64_t c = 1; c < kBandWidth; ++c) {
    double* column = block + c * kBandStride;
    const V v_column = hn::Set(kTag, v[c]);
    V values[kVectors];
    V dot = hn::Zero(kTag), other = hn::Zero(kTag);
    HWY_UNROLL(8)
    for (std::int64_t i = 0; i < kVectors; ++i) {
      values[i] = hn::NegMulAdd(hn::LoadU(kTag, u + i * kLanes), v_column,
                                hn::LoadU(kTag, column + i * kLanes));
      V& half = i % 2 == 0 ? dot : other;
      half = hn::MulAdd(hn::LoadU(kTag, next_v + i * kLanes), values[i], half);
    }
    const V factor = hn::Set(kTag, *next_scale * sum(hn::Add(dot, other)));
    HWY_UNROLL(8)
    for (std::int64_t i = 0; i < kVectors; ++i) {
      hn::StoreU(hn::NegMulAdd(hn::LoadU(kTag, next_v + i * kLanes), factor, values[i]), kTag,
                 column + i * kLanes);
    }
  }
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(reflect_diagonal);
HWY_EXPORT(chase_block);

void reflect_diagonal(double* band, std::int64_t row, const double* v, double scale) {
  HWY_DYNAMIC_DISPATCH(reflect_diagonal)(band, row, v, scale);
}

void chase_block(double* band, std::int64_t row, const double* v, double scale, double* next_v,
                 double* next_scale) {
  HWY_DYNAMIC_DISPATCH(chase_block)(band, row, v, scale, next_v, next_scale);
}

}  // namespace kvc
#endif  // HWY_ONCE
