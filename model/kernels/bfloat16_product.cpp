#include "model/kernels/bfloat16_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/kernels/bfloat16_tiles.h"
#include "model/kernels/causal_attention.h"
#include "model/kernels/element.h"

#if KVC_HAS_BFLOAT16_TILES
KVC_BEFORE_BFLOAT16_TILES();
namespace kvc {
namespace {

constexpr std::int64_t kPackedPairs =
    512;  // of channels: half of a second-level cache with their columns

// x's rows in whole blocks, those behind the last zero.
class BlockRows {
 public:
  explicit BlockRows(const Bfloat16Product& product)
      : product_(product),
        whole_(product.num_rows / kBlockRows * kBlockRows),
        rest_(whole_ == product.num_rows ? 0 : static_cast<std::size_t>(kBlockRows * product.in)) {
    for (std::int64_t row = whole_; row < product.num_rows; ++row) {
      std::memcpy(rest_.data() + (row - whole_) * product.in, product.x + row * product.x_stride,
                  static_cast<std::size_t>(product.in) * sizeof(std::uint16_t));
    }
  }

  // sums += rows x packed channels from 2 * pair on.
  void multiply(std::int64_t pair, std::int64_t pairs, const std::uint32_t* packed,
                const float* factors, float* sums) const {
    TileProduct tiles{.left = product_.x + 2 * pair,
                      .left_stride = product_.x_stride,
                      .rows = whole_,
                      .pairs = pairs,
                      .right = packed,
                      .right_pairs = pairs,
                      .columns = round_up_to(product_.columns, kLanes),
                      .factors = factors,
                      .sums = sums,
                      .sums_stride = kProductColumns};
    multiply_tiles(tiles);
    if (!rest_.empty()) {
      tiles.left = rest_.data() + 2 * pair;
      tiles.left_stride = product_.in;
      tiles.rows = kBlockRows;
      tiles.sums = sums + whole_ * kProductColumns;
      multiply_tiles(tiles);
    }
  }

 private:
  const Bfloat16Product& product_;
  std::int64_t whole_;
  std::vector<std::uint16_t> rest_;  // [kBlockRows, in], or none
};

void write_rows(const Bfloat16Product& product, const float* sums) {
  alignas(64) float bias[kProductColumns] = {};
  if (product.bias != nullptr) {
    std::copy_n(product.bias, product.columns, bias);
  }
  for (std::int64_t row = 0; row < product.num_rows; ++row) {
    std::uint16_t* to = product.y + row * product.y_stride;
    const float* from = sums + row * kProductColumns;
    for (std::int64_t c = 0; c < product.columns; c += kLanes) {
      const std::int64_t count = std::min(kLanes, product.columns - c);
      const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(from + c), _mm512_load_ps(bias + c));
      _mm256_mask_storeu_epi16(to + c, static_cast<__mmask16>((std::uint32_t{1} << count) - 1),
                               reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
    }
  }
}

void multiply_packed(const Bfloat16Product& product) {
  const std::int64_t pairs = product.in / 2, rows = round_up_to(product.num_rows, kBlockRows);
  const BlockRows x(product);
  std::vector<std::uint32_t> packed(
      static_cast<std::size_t>(packed_size(std::min(pairs, kPackedPairs), kProductColumns)));
  std::vector<float> sums(static_cast<std::size_t>(rows * kProductColumns));
  const std::vector<float> ones(static_cast<std::size_t>(rows), 1.0f);
  for (std::int64_t pair = 0; pair < pairs; pair += kPackedPairs) {
    const std::int64_t count = std::min(kPackedPairs, pairs - pair);
    pack_transposed(product.weight + 2 * pair, product.in, product.columns, count,
                    round_up_to(product.columns, kLanes), packed.data());
    x.multiply(pair, count, packed.data(), pair == 0 ? nullptr : ones.data(), sums.data());
  }
  write_rows(product, sums.data());
}

}  // namespace
}  // namespace kvc
HWY_POP_ATTRIBUTES
#endif  // KVC_HAS_BFLOAT16_TILES

namespace kvc {

bool bfloat16_product_is_fast(std::int64_t in) { return causal_attention_is_fast(in); }

void bfloat16_product(const Bfloat16Product& product) {
#if KVC_HAS_BFLOAT16_TILES
  if (bfloat16_product_is_fast(product.in)) {
    return multiply_packed(product);
  }
#endif
  bfloat16_product_reference(product);
}

void bfloat16_product_reference(const Bfloat16Product& product) {
  for (std::int64_t row = 0; row < product.num_rows; ++row) {
    for (std::int64_t column = 0; column < product.columns; ++column) {
      double sum = product.bias == nullptr ? 0 : product.bias[column];
      for (std::int64_t i = 0; i < product.in; ++i) {
        sum += static_cast<double>(float_of_bfloat16(product.x[row * product.x_stride + i])) *
               float_of_bfloat16(product.weight[column * product.in + i]);
      }
      product.y[row * product.y_stride + column] = bfloat16_of(static_cast<float>(sum));
    }
  }
}

}  // namespace kvc
