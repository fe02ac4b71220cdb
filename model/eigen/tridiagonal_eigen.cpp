#include "model/eigen/tridiagonal_eigen.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/eigen/rank_one_merge.h"
#include "model/parallel.h"

namespace kvc {
namespace {

constexpr std::int64_t kLeaf = 64;  // LAPACK's for blocks of this size

class DivideAndConquer {
 public:
  explicit DivideAndConquer(const Tridiagonal& matrix)
      : n_(static_cast<std::int64_t>(matrix.diagonal.size())),
        diagonal_(matrix.diagonal),
        coupling_(matrix.subdiagonal) {
    double norm = 0;
    for (const std::vector<double>* part : {&diagonal_, &coupling_}) {
      for (const double x : *part) {
        norm = std::max(norm, std::abs(x));
      }
    }
    tolerance_ = 8 * std::numeric_limits<double>::epsilon() * norm;
    while ((n_ >> num_levels_) > kLeaf) {
      ++num_levels_;
    }
    blocks_.vectors = at::empty({n_, n_ + kRowPadding}, at::kDouble).narrow(1, 0, n_);
    blocks_.values.resize(static_cast<std::size_t>(n_));
    blocks_.order.resize(static_cast<std::size_t>(n_));
    std::iota(blocks_.order.begin(), blocks_.order.end(), 0);
  }

  TridiagonalEigen solve(std::int64_t num_vectors) {
    solve_leaves();
    for (int level = num_levels_ - 1; level > 0; --level) {
      merge_level(level);
    }
    return num_levels_ == 0 ? take_leaf(num_vectors) : merge_root(num_vectors);
  }

 private:
  // Block `index` of the 2^level of a level begins here.
  std::int64_t bound(int level, std::int64_t index) const { return n_ * index >> level; }

  void solve_leaves() {
    const std::int64_t count = std::int64_t{1} << num_levels_;
    for (std::int64_t leaf = 1; leaf < count; ++leaf) {
      const auto row = static_cast<std::size_t>(bound(num_levels_, leaf));
      const double size = std::abs(coupling_[row - 1]);
      diagonal_[row - 1] -= size;
      diagonal_[row] -= size;
    }
    parallel_pieces(count, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t leaf = first; leaf < last; ++leaf) {
        solve_leaf(bound(num_levels_, leaf), bound(num_levels_, leaf + 1));
      }
    });
  }

  void solve_leaf(std::int64_t begin, std::int64_t end) {
    at::Tensor dense = at::zeros({end - begin, end - begin}, at::kDouble);
    double* element = dense.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < end - begin; ++i) {
      element[i * (end - begin + 1)] = diagonal_[static_cast<std::size_t>(begin + i)];
      if (i > 0) {
        element[i * (end - begin + 1) - 1] = coupling_[static_cast<std::size_t>(begin + i - 1)];
      }
    }
    const auto [values, vectors] = at::linalg_eigh(dense, "L");
    std::copy_n(values.const_data_ptr<double>(), end - begin, blocks_.values.begin() + begin);
    block(begin, end).copy_(vectors.t());
  }

  at::Tensor block(std::int64_t begin, std::int64_t end) {
    return blocks_.vectors.narrow(0, begin, end - begin).narrow(1, begin, end - begin);
  }

  // Small blocks side by side, large ones each on all threads.
  void merge_level(int level) {
    const std::int64_t count = std::int64_t{1} << level;
    const auto merge = [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t index = first; index < last; ++index) {
        merge_block(level, index);
      }
    };
    if (count >= 2 * at::get_num_threads()) {
      parallel_pieces(count, 1, merge);
    } else {
      merge(0, count);
    }
  }

  RankOneMerge start_merge(int level, std::int64_t index) {
    const std::int64_t middle = bound(level + 1, 2 * index + 1);
    return {blocks_,
            bound(level, index),
            middle,
            bound(level, index + 1),
            coupling_[static_cast<std::size_t>(middle - 1)],
            tolerance_};
  }

  void merge_block(int level, std::int64_t index) {
    const std::int64_t begin = bound(level, index), end = bound(level, index + 1);
    RankOneMerge merge = start_merge(level, index);
    std::vector<double> values;
    std::vector<std::int64_t> roots, deflated;
    for (std::int64_t i = 0; i < merge.num_roots(); ++i) {
      roots.push_back(i);
      values.push_back(merge.root_value(i));
    }
    for (std::int64_t i = 0; i < merge.num_deflated(); ++i) {
      deflated.push_back(i);
      values.push_back(merge.deflated_value(i));
    }
    merge.write_vectors(roots, deflated, block(begin, end));
    std::copy(values.begin(), values.end(), blocks_.values.begin() + begin);
    std::iota(blocks_.order.begin() + begin, blocks_.order.begin() + end, begin);
    std::stable_sort(blocks_.order.begin() + begin, blocks_.order.begin() + end,
                     [&](std::int64_t a, std::int64_t b) {
                       return values[static_cast<std::size_t>(a - begin)] <
                              values[static_cast<std::size_t>(b - begin)];
                     });
  }

  // The last merge: only the wanted eigenvectors, as columns.
  TridiagonalEigen merge_root(std::int64_t num_vectors) {
    RankOneMerge merge = start_merge(0, 0);
    struct Pair {
      double value;
      bool is_root;
      std::int64_t index;
    };
    std::vector<Pair> pairs;
    for (std::int64_t i = 0; i < merge.num_roots(); ++i) {
      pairs.push_back({merge.root_value(i), true, i});
    }
    for (std::int64_t i = 0; i < merge.num_deflated(); ++i) {
      pairs.push_back({merge.deflated_value(i), false, i});
    }
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const Pair& a, const Pair& b) { return a.value > b.value; });

    TridiagonalEigen result;
    std::vector<std::int64_t> roots, deflated;
    for (const Pair& pair : pairs) {
      result.values.push_back(pair.value);
      if (static_cast<std::int64_t>(result.values.size()) <= num_vectors) {
        std::vector<std::int64_t>& list = pair.is_root ? roots : deflated;
        result.columns.push_back(static_cast<std::int64_t>(list.size()));
        list.push_back(pair.index);
      }
    }
    for (std::size_t i = 0; i < result.columns.size(); ++i) {
      result.columns[i] += pairs[i].is_root ? 0 : static_cast<std::int64_t>(roots.size());
    }
    result.vectors = at::empty({n_, num_vectors}, at::kDouble);
    merge.write_vectors(roots, deflated, result.vectors.t());
    return result;
  }

  TridiagonalEigen take_leaf(std::int64_t num_vectors) {
    TridiagonalEigen result;
    result.values.assign(blocks_.values.rbegin(), blocks_.values.rend());
    result.vectors = block(0, n_).flip(0).narrow(0, 0, num_vectors).t().contiguous();
    result.columns.resize(static_cast<std::size_t>(num_vectors));
    std::iota(result.columns.begin(), result.columns.end(), 0);
    return result;
  }

  std::int64_t n_;
  std::vector<double> diagonal_;  // [n], lessened by the couplings between leaves
  std::vector<double> coupling_;  // [n - 1]
  double tolerance_ = 0;
  int num_levels_ = 0;  // of merges
  BlockEigen blocks_;
};

}  // namespace

TridiagonalEigen tridiagonal_eigen(const Tridiagonal& matrix, std::int64_t num_vectors) {
  return DivideAndConquer(matrix).solve(num_vectors);
}

}  // namespace kvc
