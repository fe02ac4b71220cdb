// Products of matrices whose float32 sums stay in registers.
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

// Matrices of float32 numbers, or of pairs of bfloat16 numbers (bfloat16_product-inl.h): strides from one row to the next.
struct Sums {
  float* numbers = nullptr;
  std::int64_t stride = 0;
};
template <class Word>
struct Factors {
  const Word* words = nullptr;
  std::int64_t stride = 0;
};

// Words that are one number each.
struct FloatWords {
  using Word = float;
  static constexpr std::int64_t kNumbers = 1;
  static HWY_INLINE NumberVec load(const float* words) { return hn::LoadU(Numbers(), words); }
  static HWY_INLINE NumberVec spread(float word) { return hn::Set(Numbers(), word); }
  static HWY_INLINE NumberVec add(NumberVec a, NumberVec b, NumberVec sums) {
    return hn::MulAdd(a, b, sums);
  }
};

// c (+)= a b for kRows rows, `depth` words of a's rows, and two vectors of columns.
template <class Words, int kRows, bool kAdds>
HWY_INLINE void multiply_block(const Factors<typename Words::Word>& a, std::int64_t depth,
                               const Factors<typename Words::Word>& b, const Sums& c) {
  const Numbers d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  NumberVec sums[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      sums[r][v] = kAdds ? hn::LoadU(d, c.numbers + r * c.stride + v * lanes) : hn::Zero(d);
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    const auto low = Words::load(b.words + k * b.stride);
    const auto high = Words::load(b.words + k * b.stride + lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = Words::spread(a.words[r * a.stride + k]);
      sums[r][0] = Words::add(factor, low, sums[r][0]);
      sums[r][1] = Words::add(factor, high, sums[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      hn::StoreU(sums[r][v], d, c.numbers + r * c.stride + v * lanes);
    }
  }
}

template <class Words, int kRows, bool kAdds>
void multiply_rest(std::int64_t rows, const Factors<typename Words::Word>& a, std::int64_t depth,
                   const Factors<typename Words::Word>& b, const Sums& c) {
  if (rows == kRows) {
    multiply_block<Words, kRows, kAdds>(a, depth, b, c);
  } else if constexpr (kRows > 1) {
    multiply_rest<Words, kRows - 1, kAdds>(rows, a, depth, b, c);
  }
}

// c (+)= a b: a [rows, depth], b [depth, columns], a multiple of kColumnsTogether. A number of c is the sum in the order of
// a's columns, whatever the other rows and columns are.
template <class Words, bool kAdds>
void multiply(std::int64_t rows, std::int64_t depth, std::int64_t columns,
              const Factors<typename Words::Word>& a, const Factors<typename Words::Word>& b,
              const Sums& c) {
  const auto step = static_cast<std::int64_t>(2 * hn::Lanes(Numbers()));
  for (std::int64_t column = 0; column < columns; column += step) {
    const Factors<typename Words::Word> of_b{b.words + column, b.stride};
    for (std::int64_t row = 0; row < rows; row += kRowsTogether) {
      const Factors<typename Words::Word> of_a{a.words + row * a.stride, a.stride};
      const Sums of_c{c.numbers + row * c.stride + column, c.stride};
      const std::int64_t left = rows - row;
      if (left >= kRowsTogether) {
        multiply_block<Words, kRowsTogether, kAdds>(of_a, depth, of_b, of_c);
      } else {
        multiply_rest<Words, kRowsTogether - 1, kAdds>(left, of_a, depth, of_b, of_c);
      }
    }
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVC_RUNTIME_KERNELS_FLOAT_PRODUCT_INL_H_
