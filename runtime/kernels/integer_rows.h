// Rows of weights as integers that multiply integer codes. Does not use torch.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/code_tiles.h"

namespace kvc {

// Weights of some coefficients of a tile. A weight is scale(row) times a 16-bit integer, or, from coefficient
// num_wide of these on, times 256 and an 8-bit integer, if that adds less than a share of the squared error of
// the codes to it. A row's sums over all codes always fit in 32 bits.
class IntegerRows {
 public:
  static constexpr std::int64_t kQuad = 4;  // coefficients whose products are summed together
  static constexpr std::int64_t kRows = 8;  // that are multiplied together
  static constexpr double kAddedDistortion = 0.01;

  // coefficients: indices in the tile, ascending. weights: [num_rows, coefficients.size()]
  IntegerRows(const TileLayout& layout, std::vector<std::int32_t> coefficients,
              const float* weights, std::int64_t num_rows,
              double added_distortion = kAddedDistortion);

  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t num_quads() const { return num_quads_; }
  std::int64_t num_wide() const { return num_wide_quads_ * kQuad; }
  // Index in the tile of each of num_quads * kQuad coefficients; any one where a quad has no more.
  const std::int32_t* coefficients() const { return coefficients_.data(); }
  bool has_run() const { return has_run_; }  // the coefficients are the tile's first ones
  float scale(std::int64_t row) const { return scale_[at(row)]; }
  float offset(std::int64_t row) const { return offset_[at(row)]; }  // of the codes' first levels
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(high_.size() + low_.size()) + 8 * num_rows_ +
           4 * static_cast<std::int64_t>(coefficients_.size());
  }
  // A weight of a coefficient of the tile, in units of the scale.
  int integer(std::int64_t row, std::int64_t coefficient) const;
  // Those of kRows rows from a multiple of that on: [num_quads, kRows, kQuad], the high bytes (256 each), and
  // [num_wide / kQuad, kRows, kQuad], the low ones. Zeros beyond the last row or coefficient.
  const std::int8_t* high(std::int64_t row) const {
    return high_.data() + row * num_quads_ * kQuad;
  }
  const std::int8_t* low(std::int64_t row) const {
    return low_.data() + row * num_wide_quads_ * kQuad;
  }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  std::int64_t num_rows_, count_, num_quads_, num_wide_quads_ = 0;
  bool has_run_;
  std::vector<std::int32_t> coefficients_;
  std::vector<float> scale_, offset_;  // [num_rows, padded to a multiple of kRows]
  AlignedVector<std::int8_t> high_, low_;
};

}  // namespace kvc
