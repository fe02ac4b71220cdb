// The inner loop of multiplying eigenvectors by the reflectors of the band reduction: plain
// doubles, vectorised.
#pragma once

#include <cstdint>

namespace kvc {

constexpr std::int64_t kPanelColumns = 24;   // columns of a panel of eigenvectors
constexpr std::int64_t kReflectorGroup = 8;  // reflectors applied together

// w = v T with H_0 H_1 ... = I - v T v^T, H_i = I - scales[i] v_i v_i^T. `v`, `w` [rows,
// kReflectorGroup].
void join_reflectors(const double* v, const double* scales, std::int64_t rows, double* w);

// x -= w (v^T x): `v` and `w` [rows, kReflectorGroup], `x` [rows, kPanelColumns].
void apply_reflectors(const double* v, const double* w, std::int64_t rows, double* x);

}  // namespace kvc
