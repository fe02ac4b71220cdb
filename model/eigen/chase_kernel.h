// The inner loops of the reduction from band to tridiagonal form: plain doubles, vectorised.
//
// The band is stored by columns: element (row, column), 0 <= row - column < 2 kBandWidth, of the lower
// triangle at band[column * kBandStride + row]. Blocks are therefore dense matrices with leading
// dimension kBandStride. Rows behind the matrix are zero.
#pragma once

#include <cstdint>

namespace kvc {

constexpr std::int64_t kBandWidth = 64;
// The eight spare elements of each column take what vector stores write above the diagonal.
constexpr std::int64_t kBandStride = 2 * kBandWidth + 8 - 1;

// H = I - scale * v v^T, v[0] = 1, with H x = (head, 0, ..., 0). Replaces x [kBandWidth] by v and
// returns the scale: 0 where x has nothing to eliminate.
double make_reflector(double* x, double* head);

// Applies H = I - scale * v v^T from both sides to the diagonal block whose corner is (row, row).
void reflect_diagonal(double* band, std::int64_t row, const double* v, double scale);

// The block below it, rows row + kBandWidth on, is multiplied by H from the right; that fills its
// first column, which a new reflector, applied from the left to the whole block, eliminates.
void chase_block(double* band, std::int64_t row, const double* v, double scale, double* next_v,
                 double* next_scale);

}  // namespace kvc
