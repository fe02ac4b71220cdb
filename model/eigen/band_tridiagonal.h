// Band to tridiagonal form, S = Q2 T Q2^T: bulge chasing with Householder reflectors of length
// kBandWidth (Murata and Horikoshi, 1975; Bischof, Lang and Sun, 2000). Sweep s eliminates column s below
// its first subdiagonal; step j of it moves the bulge from rows s + 1 + j kBandWidth on by one block.
// A step may run when the sweep before has finished two steps more (Haidar, Ltaief and Dongarra, 2011).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/eigen/chase_kernel.h"

namespace kvc {

struct Tridiagonal {
  std::vector<double> diagonal;     // [n]
  std::vector<double> subdiagonal;  // [n - 1]
};

// The reflectors of all sweeps, in the order in which they were applied.
class ChaseReflectors {
 public:
  explicit ChaseReflectors(std::int64_t n);

  std::int64_t size() const { return n_; }
  std::int64_t num_sweeps() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  std::int64_t num_steps(std::int64_t sweep) const {
    return begins_[static_cast<std::size_t>(sweep) + 1] - begins_[static_cast<std::size_t>(sweep)];
  }
  static std::int64_t first_row(std::int64_t sweep, std::int64_t step) {
    return sweep + 1 + step * kBandWidth;
  }
  // v [kBandWidth], v[0] = 1, zero behind the matrix; its scale.
  double* vector(std::int64_t sweep, std::int64_t step) {
    return vectors_.get() + index(sweep, step) * kBandWidth;
  }
  const double* vector(std::int64_t sweep, std::int64_t step) const {
    return vectors_.get() + index(sweep, step) * kBandWidth;
  }
  double& scale(std::int64_t sweep, std::int64_t step) {
    return scales_[static_cast<std::size_t>(index(sweep, step))];
  }
  double scale(std::int64_t sweep, std::int64_t step) const {
    return scales_[static_cast<std::size_t>(index(sweep, step))];
  }

 private:
  std::int64_t index(std::int64_t sweep, std::int64_t step) const {
    return begins_[static_cast<std::size_t>(sweep)] + step;
  }

  std::int64_t n_;
  std::vector<std::int64_t> begins_;
  std::unique_ptr<double[]> vectors_;
  std::vector<double> scales_;
};

// `band` as chase_kernel.h stores it, n columns; it is consumed. The same bits whatever the number of
// threads.
Tridiagonal chase_band(std::vector<double>& band, ChaseReflectors& reflectors);

}  // namespace kvc
