// Products of packed bfloat16 matrices in AVX-512 BF16, summed in float32. Two neighbours along the sum are one
// 32-bit number. Include where KVC_HAS_BFLOAT16_TILES says so, between push and pop of attributes only.
#pragma once

#include <hwy/base.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define KVC_HAS_BFLOAT16_TILES 1
// The compiler's own header leaves operands of masked instructions undefined.
HWY_DIAGNOSTICS(push)
HWY_DIAGNOSTICS_OFF(disable : 4701, ignored "-Wmaybe-uninitialized")
HWY_DIAGNOSTICS_OFF(disable : 4700, ignored "-Wuninitialized")
#include <immintrin.h>
HWY_DIAGNOSTICS(pop)

#define KVC_BEFORE_BFLOAT16_TILES() \
  HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")

KVC_BEFORE_BFLOAT16_TILES();
namespace kvc {

inline constexpr std::int64_t kLanes = 16;
inline constexpr std::int64_t kBlockRows =
    6;  // of the left matrix: with a panel's columns all registers
inline constexpr std::int64_t kPanelColumns = 64;

inline std::int64_t round_up_to(std::int64_t x, std::int64_t step) {
  return (x + step - 1) / step * step;
}

// The right matrix: [panels][pairs][kPanelColumns].
inline std::int64_t packed_size(std::int64_t pairs, std::int64_t columns) {
  return pairs * round_up_to(columns, kPanelColumns);
}

// Rows become columns of 16 x 16.
inline void transpose(__m512i (&x)[kLanes]) {
  __m512i twos[kLanes], fours[kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 2) {
    twos[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    twos[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(twos[i], twos[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(twos[i], twos[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(twos[i + 1], twos[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(twos[i + 1], twos[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // quarters of four rows each
    const __m512i even = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88);
    const __m512i odd = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd);
    const __m512i last_even = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
    const __m512i last_odd = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xdd);
    x[i] = _mm512_shuffle_i32x4(even, last_even, 0x88);
    x[i + 4] = _mm512_shuffle_i32x4(odd, last_odd, 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(even, last_even, 0xdd);
    x[i + 12] = _mm512_shuffle_i32x4(odd, last_odd, 0xdd);
  }
}

// Rows become columns: column j is row min(j, num_rows - 1) of `rows`. load(row, pair, mask): pairs of that row, from
// `pair` on, that `mask` has. columns: a multiple of kLanes.
template <class Load>
void pack_columns(const Load& load, std::int64_t num_rows, std::int64_t pairs, std::int64_t columns,
                  std::uint32_t* packed) {
  for (std::int64_t column = 0; column < columns; column += kLanes) {
    std::uint32_t* to =
        packed + column / kPanelColumns * kPanelColumns * pairs + column % kPanelColumns;
    for (std::int64_t pair = 0; pair < pairs; pair += kLanes) {
      const std::int64_t count = std::min(kLanes, pairs - pair);
      const auto mask = static_cast<__mmask16>((std::uint32_t{1} << count) - 1);
      __m512i square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        square[lane] = load(std::min(column + lane, num_rows - 1), pair, mask);
      }
      transpose(square);
      if (count == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          _mm512_storeu_si512(to + (pair + i) * kPanelColumns, square[i]);
        }
        continue;
      }
      for (std::int64_t i = 0; i < count; ++i) {
        _mm512_storeu_si512(to + (pair + i) * kPanelColumns, square[i]);
      }
    }
  }
}

// Pairs of rows of numbers that are `stride` apart.
struct RowPairs {
  const std::uint16_t* rows;
  std::int64_t stride;

  __m512i operator()(std::int64_t row, std::int64_t pair, __mmask16 mask) const {
    return _mm512_maskz_loadu_epi32(mask, rows + row * stride + 2 * pair);
  }
};

// Rows stay rows, two of them a row of pairs; zeros behind the last. num_pairs at least half of num_rows.
inline void pack_pairs(const std::uint16_t* rows, std::int64_t stride, std::int64_t num_rows,
                       std::int64_t num_pairs, std::int64_t columns, std::uint32_t* packed) {
  alignas(64) std::uint16_t order[2][32];
  for (int i = 0; i < 64; ++i) {
    order[i / 32][i % 32] = static_cast<std::uint16_t>(i / 2 + i % 2 * 32);
  }
  const __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
  for (std::int64_t column = 0; column < columns; column += 2 * kLanes) {
    const std::int64_t count = std::min(2 * kLanes, columns - column);
    const auto mask = static_cast<__mmask32>(~std::uint64_t{0} >> (64 - count));
    std::uint32_t* to =
        packed + column / kPanelColumns * kPanelColumns * num_pairs + column % kPanelColumns;
    for (std::int64_t pair = 0; pair < num_pairs; ++pair, to += kPanelColumns) {
      const std::uint16_t* row = rows + 2 * pair * stride + column;
      const __m512i even = _mm512_maskz_loadu_epi16(2 * pair < num_rows ? mask : 0, row);
      const __m512i odd =
          _mm512_maskz_loadu_epi16(2 * pair + 1 < num_rows ? mask : 0, row + stride);
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(to + kLanes, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}

// kBlockRows rows of the left matrix with kVectors vectors of a panel. factors: of the rows of `sums` before
// they are added to; null: they are zero before.
template <int kVectors>
void multiply_block(const std::uint16_t* left, std::int64_t left_stride, std::int64_t pairs,
                    const std::uint32_t* panel, const float* factors, float* sums,
                    std::int64_t sums_stride) {
  __m512 sum[kBlockRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kBlockRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[row][v] = factors == nullptr
                        ? _mm512_setzero_ps()
                        : _mm512_mul_ps(_mm512_set1_ps(factors[row]),
                                        _mm512_loadu_ps(sums + row * sums_stride + v * kLanes));
    }
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair, panel += kPanelColumns) {
    __m512bh columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel + v * kLanes));
    }
#pragma GCC unroll 8
    for (int row = 0; row < kBlockRows; ++row) {
      std::uint32_t two;
      std::memcpy(&two, left + row * left_stride + 2 * pair, sizeof(two));
      const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(two)));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[row][v] = _mm512_dpbf16_ps(sum[row][v], x, columns[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kBlockRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(sums + row * sums_stride + v * kLanes, sum[row][v]);
    }
  }
}

struct TileProduct {
  const std::uint16_t* left;  // [rows, left_stride] numbers
  std::int64_t left_stride;
  std::int64_t rows;   // a multiple of kBlockRows
  std::int64_t pairs;  // that are summed over
  const std::uint32_t* right;
  std::int64_t right_pairs;  // of a panel of `right`, at least `pairs`
  std::int64_t columns;      // a multiple of kLanes
  const float* factors;      // [rows] or null, as in multiply_block
  float* sums;               // [rows, sums_stride]
  std::int64_t sums_stride;
};

inline void multiply_tiles(const TileProduct& x) {
  constexpr decltype(&multiply_block<1>) kMultiply[] = {multiply_block<1>, multiply_block<2>,
                                                        multiply_block<3>, multiply_block<4>};
  for (std::int64_t column = 0; column < x.columns; column += kPanelColumns) {
    const std::uint32_t* panel = x.right + column * x.right_pairs;
    const std::int64_t vectors = std::min(kPanelColumns, x.columns - column) / kLanes;
    for (std::int64_t row = 0; row < x.rows; row += kBlockRows) {
      const std::uint16_t* left = x.left + row * x.left_stride;
      const float* factors = x.factors == nullptr ? nullptr : x.factors + row;
      float* sums = x.sums + row * x.sums_stride + column;
      kMultiply[vectors - 1](left, x.left_stride, x.pairs, panel, factors, sums, x.sums_stride);
    }
  }
}

}  // namespace kvc
HWY_POP_ATTRIBUTES
#endif  // x86-64
