// Eigenvectors of the tridiagonal matrix to those of the full one, X = Q1 Q2 Z, for the columns that
// are wanted only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/eigen/band_reduction.h"
#include "model/eigen/band_tridiagonal.h"

namespace kvc {

// z <- Q2 Z, where Z's columns are those of z [n, num_columns] float64 in the order that `columns`
// names. Reflectors of neighbouring sweeps act together as I - V T V^T, on panels of eigenvectors
// that stay in the cache. The same bits whatever the number of threads.
void apply_chase(const ChaseReflectors& reflectors, at::Tensor& z,
                 const std::vector<std::int64_t>& columns);

// x <- Q1 x. x [n, num_columns] float64.
void apply_band_reduction(const BandReduction& reduction, at::Tensor& x);

}  // namespace kvc
