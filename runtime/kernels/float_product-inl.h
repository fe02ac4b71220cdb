// Products of float32 matrices whose sums stay in registers.
#if defined(KVC_RUNTIME_KERNELS_FLOAT_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_FLOAT_PRODUCT_INL_H_
#undef KVC_RUNTIME_KERNELS_FLOAT_PRODUCT_INL_H_
#else
#define KVC_RUNTIME_KERNELS_FLOAT_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

using Numbers = hn::CappedTag<float, 16>;
using NumberVec = hn::Vec<Numbers>;
// Rows and columns whose sums stay in registers: twelve vectors.
constexpr int kRowsTogether = 6;
constexpr std::int64_t kColumnsTogether = 32;  // a multiple of two vectors

// A matrix of float32.
struct Matrix {
  float* numbers = nullptr;
  std::int64_t stride = 0;  // from one row to the next
};
struct ConstMatrix {
  const float* numbers = nullptr;
  std::int64_t stride = 0;

  ConstMatrix(const float* of, std::int64_t row_stride) : numbers(of), stride(row_stride) {}
  ConstMatrix(const Matrix& of) : numbers(of.numbers), stride(of.stride) {}
};

// c (+)= a b for kRows rows, `depth` columns of a, and two vectors of columns.
template <int kRows, bool kAdds>
HWY_INLINE void multiply_block(const ConstMatrix& a, std::int64_t depth, const ConstMatrix& b,
                               const Matrix& c) {
  const Numbers d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  NumberVec sums[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      sums[r][v] = kAdds ? hn::LoadU(d, c.numbers + r * c.stride + v * lanes) : hn::Zero(d);
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    const NumberVec low = hn::LoadU(d, b.numbers + k * b.stride);
    const NumberVec high = hn::LoadU(d, b.numbers + k * b.stride + lanes);
    for (int r = 0; r < kRows; ++r) {
      const NumberVec factor = hn::Set(d, a.numbers[r * a.stride + k]);
      sums[r][0] = hn::MulAdd(factor, low, sums[r][0]);
      sums[r][1] = hn::MulAdd(factor, high, sums[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      hn::StoreU(sums[r][v], d, c.numbers + r * c.stride + v * lanes);
    }
  }
}

template <int kRows, bool kAdds>
void multiply_rest(std::int64_t rows, const ConstMatrix& a, std::int64_t depth,
                   const ConstMatrix& b, const Matrix& c) {
  if (rows == kRows) {
    multiply_block<kRows, kAdds>(a, depth, b, c);
  } else if constexpr (kRows > 1) {
    multiply_rest<kRows - 1, kAdds>(rows, a, depth, b, c);
  }
}

// c (+)= a b: a [rows, depth], b [depth, columns], a multiple of kColumnsTogether. A number of c is the sum in the order of
// a's columns, whatever the other rows and columns are.
template <bool kAdds>
void multiply(std::int64_t rows, std::int64_t depth, std::int64_t columns, const ConstMatrix& a,
              const ConstMatrix& b, const Matrix& c) {
  const auto step = static_cast<std::int64_t>(2 * hn::Lanes(Numbers()));
  for (std::int64_t column = 0; column < columns; column += step) {
    const ConstMatrix of_b{b.numbers + column, b.stride};
    for (std::int64_t row = 0; row < rows; row += kRowsTogether) {
      const ConstMatrix of_a{a.numbers + row * a.stride, a.stride};
      const Matrix of_c{c.numbers + row * c.stride + column, c.stride};
      const std::int64_t left = rows - row;
      if (left >= kRowsTogether) {
        multiply_block<kRowsTogether, kAdds>(of_a, depth, of_b, of_c);
      } else {
        multiply_rest<kRowsTogether - 1, kAdds>(left, of_a, depth, of_b, of_c);
      }
    }
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVC_RUNTIME_KERNELS_FLOAT_PRODUCT_INL_H_
