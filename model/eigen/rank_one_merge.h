// One step of divide and conquer (Cuppen, 1981): the eigenvectors of the two halves of a tridiagonal
// matrix, T = diag(T1, T2) + rho u u^T, become those of the whole. Components that the coupling does not
// touch, and directions within nearly equal eigenvalues, are split off beforehand (deflation).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/eigen/secular_equation.h"

namespace kvc {

// Eigenpairs of a block diagonal matrix. Block [begin, end) has its eigenvectors in rows and
// columns [begin, end) of `vectors`, one per row; nothing else of `vectors` is defined.
struct BlockEigen {
  at::Tensor vectors;               // [n, n] float64
  std::vector<double> values;       // [n], of the rows
  std::vector<std::int64_t> order;  // [n], the rows of each block by ascending value
};

class RankOneMerge {
 public:
  // Merges blocks [begin, middle) and [middle, end), whose diagonals are already lessened by
  // |coupling|, the subdiagonal element between them. What is below `tolerance`, an absolute
  // error of the eigenvalues, is deflated.
  RankOneMerge(BlockEigen& blocks, std::int64_t begin, std::int64_t middle, std::int64_t end,
               double coupling, double tolerance);

  std::int64_t num_roots() const { return equation_.size(); }
  std::int64_t num_deflated() const { return static_cast<std::int64_t>(deflated_.size()); }
  double root_value(std::int64_t root) const {
    return roots_[static_cast<std::size_t>(root)].value();
  }
  double deflated_value(std::int64_t index) const {
    return blocks_.values[static_cast<std::size_t>(deflated_[static_cast<std::size_t>(index)])];
  }

  // The eigenvectors of the roots and of the deflated values that are named, in that order, one per
  // row: `out` [roots + deflated, end - begin], any strides; it may be the merged blocks' place.
  void write_vectors(const std::vector<std::int64_t>& roots,
                     const std::vector<std::int64_t>& deflated, at::Tensor out);

 private:
  // The columns in which an eigenvector of the halves is not zero.
  enum class Support : char { kLeft, kBoth, kRight };

  void couple(double coupling);
  void deflate(double tolerance);
  void rotate(std::int64_t from, std::int64_t to);
  void make_dense(std::int64_t row);
  void keep(std::int64_t row);
  void solve();
  at::Tensor secular_vectors(const std::vector<std::int64_t>& roots) const;
  Support& support(std::int64_t row) { return support_[static_cast<std::size_t>(row - begin_)]; }
  double& coupled(std::int64_t row) { return coupled_[static_cast<std::size_t>(row - begin_)]; }

  BlockEigen& blocks_;
  std::int64_t begin_, middle_, end_;
  std::vector<Support> support_;               // of each row
  std::vector<double> coupled_;                // of each row, its component of u / |u|
  std::vector<std::int64_t> kept_, deflated_;  // rows
  SecularEquation equation_;
  std::vector<SecularRoot> roots_;
  std::vector<double> components_;  // of the kept rows, what the roots imply
};

}  // namespace kvc
