// A block of rows times a panel of columns, as bfloat16_product.cpp has them in order. As bfloat16_tiles.h: between push
// and pop of attributes only.
#pragma once

#include "model/kernels/bfloat16_product.h"
#include "model/kernels/bfloat16_tiles.h"

#if KVC_HAS_BFLOAT16_TILES
#include <algorithm>
#include <array>
#include <cstdint>

KVC_BEFORE_BFLOAT16_TILES();
namespace kvc {

// Lines of the weights that are needed next, fetched one by one: more at a time are dropped.
class Ahead {
 public:
  Ahead(const Bfloat16Product& product, std::int64_t first, std::int64_t pair, std::int64_t count) {
    if (first >= product.out) {
      return;
    }
    rows_ = std::min(kPanelColumns, product.out - first);
    const bool has_codes = product.weight == nullptr;
    stride_ = has_codes ? int8_groups(product.in) * kInt8Group
                        : product.in * static_cast<std::int64_t>(sizeof(std::uint16_t));
    const std::int64_t pair_bytes = has_codes ? 2 : 4;
    bytes_ = count * pair_bytes;
    row_ = (has_codes ? reinterpret_cast<const char*>(product.int8.codes)
                      : reinterpret_cast<const char*>(product.weight)) +
           first * stride_ + pair * pair_bytes;
  }

  std::int64_t lines() const { return rows_ * ((bytes_ + kLine - 1) / kLine); }
  void fetch() {
    if (rows_ == 0) {
      return;
    }
    _mm_prefetch(row_ + at_, _MM_HINT_T1);
    at_ += kLine;
    if (at_ >= bytes_) {
      at_ = 0;
      row_ += stride_;
      --rows_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  const char* row_ = nullptr;
  std::int64_t rows_ = 0, stride_ = 0, bytes_ = 0, at_ = 0;
};

// A block of rows with a panel of columns.
struct ProductBlock {
  const std::uint32_t* rows;   // [pairs][kBlockRows]
  const std::uint32_t* panel;  // [pairs][kPanelColumns]
  std::int64_t pairs;
  std::int64_t pairs_per_line;  // that is fetched
  float* sums;                  // [kBlockRows, kPanelColumns]
  bool is_first, is_last;       // of the sums' parts: starts with zeros, is written to y
  const float* bias;            // [kPanelColumns]
  std::uint16_t* y;
  std::int64_t y_stride, columns;
};

template <int kRows, int kVectors>
void multiply_rows(const ProductBlock& block, Ahead& ahead) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[row][v] = block.is_first ? _mm512_setzero_ps()
                                   : _mm512_loadu_ps(block.sums + row * kPanelColumns + v * kLanes);
    }
  }
  const std::uint32_t *rows = block.rows, *panel = block.panel;
  for (std::int64_t left = block.pairs; left > 0; left -= block.pairs_per_line) {
    ahead.fetch();
    const std::int64_t count = std::min(left, block.pairs_per_line);
    for (std::int64_t pair = 0; pair < count; ++pair) {
      __m512bh columns[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        columns[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel + v * kLanes));
      }
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(rows[row])));
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sum[row][v] = _mm512_dpbf16_ps(sum[row][v], x, columns[v]);
        }
      }
      rows += kBlockRows;
      panel += kPanelColumns;
    }
  }
  if (!block.is_last) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        _mm512_storeu_ps(block.sums + row * kPanelColumns + v * kLanes, sum[row][v]);
      }
    }
    return;
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t count = std::min(kLanes, block.columns - v * kLanes);
    const auto mask = static_cast<__mmask16>((std::uint32_t{1} << count) - 1);
    const __m512 bias = _mm512_load_ps(block.bias + v * kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      _mm256_mask_storeu_epi16(
          block.y + row * block.y_stride + v * kLanes, mask,
          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_add_ps(sum[row][v], bias))));
    }
  }
}

using MultiplyRows = void (*)(const ProductBlock&, Ahead&);
template <int kRows>
inline constexpr std::array<MultiplyRows, 4> kOfVectors = {
    multiply_rows<kRows, 1>, multiply_rows<kRows, 2>, multiply_rows<kRows, 3>,
    multiply_rows<kRows, 4>};
inline constexpr std::array<std::array<MultiplyRows, 4>, kBlockRows> kMultiplyRows = {
    kOfVectors<1>, kOfVectors<2>, kOfVectors<3>, kOfVectors<4>, kOfVectors<5>, kOfVectors<6>};

}  // namespace kvc
HWY_POP_ATTRIBUTES
#endif  // KVC_HAS_BFLOAT16_TILES
