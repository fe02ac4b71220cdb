#include "model/kernels/bfloat16_rows.h"

#include <algorithm>
#include <iterator>

#include "model/kernels/bfloat16_tiles.h"
#include "model/kernels/cpu_features.h"
#include "model/kernels/element.h"
#include "model/kernels/weight_product.h"

#if KVC_HAS_BFLOAT16_TILES
KVC_BEFORE_BFLOAT16_TILES();
namespace kvc {
namespace {

constexpr std::int64_t kRun = 32;  // numbers of a vector
constexpr std::int64_t kAheadBytes =
    2048;  // from use to request: what more asks for comes no sooner

// One row of W with kX rows of x, in sums that do not wait for each other. All of a vector's numbers are used at once:
// operations that wait for memory fill the processor's queues, and fewer of them let it look further ahead.
template <int kX>
class RowProduct {
 public:
  explicit RowProduct(const Bfloat16Rows& product) : product_(product) {}

  // to: [kX], of rows of x from x on
  void multiply(const std::uint16_t* weight, const std::uint16_t* x, float* to) const {
    __m512 sums[kSums][kX];
    for (auto& of_step : sums) {
      std::fill(std::begin(of_step), std::end(of_step), _mm512_setzero_ps());
    }
    const std::int64_t in = product_.in;
    std::int64_t channel = 0;
    for (; channel + kSums * kRun <= in; channel += kSums * kRun) {
      fetch_ahead(reinterpret_cast<const char*>(weight + channel) + kAheadBytes, kSums * kRun * 2);
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < kSums; ++i) {
        add(_mm512_loadu_si512(weight + channel + i * kRun), x + channel + i * kRun, ~__mmask32{0},
            sums[i]);
      }
    }
    for (; channel < in; channel += kRun) {
      const std::int64_t count = std::min(kRun, in - channel);
      const auto mask = static_cast<__mmask32>(~std::uint64_t{0} >> (64 - count));
      add(_mm512_maskz_loadu_epi16(mask, weight + channel), x + channel, mask, sums[0]);
    }
    for (int j = 0; j < kX; ++j) {
      __m512 sum = sums[0][j];
      for (int i = 1; i < kSums; ++i) {
        sum = _mm512_add_ps(sum, sums[i][j]);
      }
      to[j] = _mm512_reduce_add_ps(sum);
    }
  }

 private:
  static constexpr int kSums = kX == 1 ? 4 : 2;

  void add(__m512i weight, const std::uint16_t* x, __mmask32 mask, __m512 (&sums)[kX]) const {
#pragma GCC unroll 8
    for (int j = 0; j < kX; ++j) {
      const __m512i of_x = _mm512_maskz_loadu_epi16(mask, x + j * product_.x_stride);
      sums[j] = _mm512_dpbf16_ps(sums[j], reinterpret_cast<__m512bh>(weight),
                                 reinterpret_cast<__m512bh>(of_x));
    }
  }

  const Bfloat16Rows& product_;
};

template <int kX>
void multiply_rows(const Bfloat16Rows& product, std::int64_t first, std::int64_t last, float* y) {
  const RowProduct<kX> rows(product);
  for (std::int64_t output = first; output < last; ++output) {
    float sums[kX];
    rows.multiply(product.weight + output * product.in, product.x, sums);
    for (int row = 0; row < kX; ++row) {
      y[row * (last - first) + output - first] = sums[row];
    }
  }
}

}  // namespace
}  // namespace kvc
HWY_POP_ATTRIBUTES
#endif  // KVC_HAS_BFLOAT16_TILES

namespace kvc {

bool bfloat16_rows_are_fast() { return has_bfloat16_products(); }

void bfloat16_rows(const Bfloat16Rows& product, std::int64_t first, std::int64_t last, float* y) {
#if KVC_HAS_BFLOAT16_TILES
  constexpr decltype(&multiply_rows<1>) kMultiply[] = {
      multiply_rows<1>, multiply_rows<2>, multiply_rows<3>, multiply_rows<4>,
      multiply_rows<5>, multiply_rows<6>, multiply_rows<7>, multiply_rows<8>};
  static_assert(std::size(kMultiply) == kMaxProductRows);
  if (bfloat16_rows_are_fast()) {
    return kMultiply[product.num_rows - 1](product, first, last, y);
  }
#endif
  bfloat16_rows_reference(product, first, last, y);
}

void bfloat16_rows_reference(const Bfloat16Rows& product, std::int64_t first, std::int64_t last,
                             float* y) {
  for (std::int64_t row = 0; row < product.num_rows; ++row) {
    for (std::int64_t output = first; output < last; ++output) {
      double sum = 0;
      for (std::int64_t i = 0; i < product.in; ++i) {
        sum += static_cast<double>(float_of_bfloat16(product.x[row * product.x_stride + i])) *
               float_of_bfloat16(product.weight[output * product.in + i]);
      }
      *y++ = static_cast<float>(sum);
    }
  }
}

}  // namespace kvc
