#include "model/eigen/rank_one_merge.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/eigen/secular_kernel.h"
#include "model/parallel.h"

namespace kvc {
namespace {

constexpr std::int64_t kPiece = 100'000;  // divisions worth a thread

std::int64_t grain(std::int64_t per_item) {
  return std::max<std::int64_t>(1, kPiece / std::max<std::int64_t>(1, per_item));
}

at::Tensor rows_of(const at::Tensor& matrix, std::vector<std::int64_t> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  return matrix.index_select(0, at::from_blob(rows.data(), {count}, at::kLong));
}

}  // namespace

RankOneMerge::RankOneMerge(BlockEigen& blocks, std::int64_t begin, std::int64_t middle,
                           std::int64_t end, double coupling, double tolerance)
    : blocks_(blocks), begin_(begin), middle_(middle), end_(end) {
  couple(coupling);
  deflate(tolerance);
  solve();
}

// u = (last components of the left half's vectors, sign times first ones of the right half's); its
// norm is the square root of 2.
void RankOneMerge::couple(double coupling) {
  const double* vectors = blocks_.vectors.const_data_ptr<double>();
  const std::int64_t stride = blocks_.vectors.stride(0);
  const double left = std::sqrt(0.5), right = std::copysign(left, coupling);
  for (std::int64_t row = begin_; row < end_; ++row) {
    const bool is_left = row < middle_;
    support_.push_back(is_left ? Support::kLeft : Support::kRight);
    coupled_.push_back(is_left ? left * vectors[row * stride + middle_ - 1]
                               : right * vectors[row * stride + middle_]);
  }
  equation_.rho = 2 * std::abs(coupling);
}

void RankOneMerge::deflate(double tolerance) {
  std::vector<std::int64_t> rows(blocks_.order.begin() + begin_, blocks_.order.begin() + end_);
  const std::vector<double>& values = blocks_.values;
  std::stable_sort(rows.begin(), rows.end(), [&](std::int64_t a, std::int64_t b) {
    return values[static_cast<std::size_t>(a)] < values[static_cast<std::size_t>(b)];
  });
  std::int64_t candidate = -1;
  for (const std::int64_t row : rows) {
    if (equation_.rho * std::abs(coupled(row)) <= tolerance) {
      deflated_.push_back(row);
      continue;
    }
    if (candidate >= 0) {
      const double gap =
          values[static_cast<std::size_t>(row)] - values[static_cast<std::size_t>(candidate)];
      const double norm = std::hypot(coupled(candidate), coupled(row));
      // What a rotation within the two would leave off the diagonal.
      if (std::abs(gap * (coupled(candidate) / norm) * (coupled(row) / norm)) <= tolerance) {
        rotate(candidate, row);
        deflated_.push_back(candidate);
      } else {
        keep(candidate);
      }
    }
    candidate = row;
  }
  if (candidate >= 0) {
    keep(candidate);
  }
}

void RankOneMerge::keep(std::int64_t row) {
  kept_.push_back(row);
  equation_.poles.push_back(blocks_.values[static_cast<std::size_t>(row)]);
  equation_.weights.push_back(coupled(row) * coupled(row));
}

// Fills with zeros what of a row is not defined.
void RankOneMerge::make_dense(std::int64_t row) {
  at::Tensor vector = blocks_.vectors.select(0, row);
  if (support(row) == Support::kLeft) {
    vector.narrow(0, middle_, end_ - middle_).zero_();
  } else if (support(row) == Support::kRight) {
    vector.narrow(0, begin_, middle_ - begin_).zero_();
  }
}

// Turns the plane of two rows so that the whole component lies in `to`.
void RankOneMerge::rotate(std::int64_t from, std::int64_t to) {
  if (support(from) != support(to)) {
    make_dense(from);
    make_dense(to);
    support(from) = support(to) = Support::kBoth;
  }
  const double norm = std::hypot(coupled(from), coupled(to));
  const double c = coupled(to) / norm, s = coupled(from) / norm;
  const std::int64_t first = support(to) == Support::kRight ? middle_ : begin_;
  const std::int64_t last = support(to) == Support::kLeft ? middle_ : end_;
  double* vectors = blocks_.vectors.mutable_data_ptr<double>();
  double* p = vectors + from * blocks_.vectors.stride(0);
  double* q = vectors + to * blocks_.vectors.stride(0);
  for (std::int64_t i = first; i < last; ++i) {
    const double x = p[i];
    p[i] = c * x - s * q[i];
    q[i] = c * q[i] + s * x;
  }
  double& low = blocks_.values[static_cast<std::size_t>(from)];
  double& high = blocks_.values[static_cast<std::size_t>(to)];
  const double gap = high - low;
  high = low + gap * c * c;
  low += gap * s * s;
  coupled(from) = 0;
  coupled(to) = norm;
}

void RankOneMerge::solve() {
  const std::int64_t count = equation_.size();
  const auto size = static_cast<std::size_t>(count);
  roots_.resize(size);
  components_.resize(size);
  std::vector<double> origins(size), shifts(size);
  parallel_pieces(count, grain(6 * count), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto k = static_cast<std::size_t>(i);
      roots_[k] = solve_secular(equation_, i);
      origins[k] = roots_[k].origin;
      shifts[k] = roots_[k].shift;
    }
  });
  parallel_pieces(count, grain(count), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto k = static_cast<std::size_t>(i);
      components_[k] =
          std::copysign(secular_component(equation_.poles, origins, shifts, i), coupled(kept_[k]));
    }
  });
}

// The coordinates of the roots' eigenvectors in the kept rows, in the order of kept_. [roots, kept]
at::Tensor RankOneMerge::secular_vectors(const std::vector<std::int64_t>& roots) const {
  const std::int64_t count = equation_.size();
  at::Tensor vectors =
      at::empty({static_cast<std::int64_t>(roots.size()), count}, blocks_.vectors.options());
  double* vector = vectors.mutable_data_ptr<double>();
  parallel_pieces(vectors.size(0), grain(count), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const SecularRoot& root =
          roots_[static_cast<std::size_t>(roots[static_cast<std::size_t>(i)])];
      fill_vector(equation_.poles.data(), components_.data(), count, root.origin, root.shift,
                  vector + i * count);
    }
  });
  return vectors;
}

void RankOneMerge::write_vectors(const std::vector<std::int64_t>& roots,
                                 const std::vector<std::int64_t>& deflated, at::Tensor out) {
  // Kept rows by support: products skip the halves that are zero.
  std::vector<std::size_t> order(kept_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return support(kept_[a]) < support(kept_[b]);
  });
  std::vector<std::int64_t> left, right;
  std::vector<double> poles, components;
  for (const std::size_t k : order) {
    poles.push_back(equation_.poles[k]);
    components.push_back(components_[k]);
    if (support(kept_[k]) != Support::kRight) {
      left.push_back(kept_[k]);
    }
    if (support(kept_[k]) != Support::kLeft) {
      right.push_back(kept_[k]);
    }
  }
  equation_.poles = std::move(poles);
  components_ = std::move(components);

  std::vector<std::int64_t> split;
  for (const std::int64_t index : deflated) {
    split.push_back(deflated_[static_cast<std::size_t>(index)]);
    make_dense(split.back());
  }
  const std::int64_t width = middle_ - begin_, other = end_ - middle_;
  const auto num_left = static_cast<std::int64_t>(left.size());
  const auto num_right = static_cast<std::int64_t>(right.size());
  const at::Tensor left_rows = rows_of(blocks_.vectors.narrow(1, begin_, width), left);
  const at::Tensor right_rows = rows_of(blocks_.vectors.narrow(1, middle_, other), right);
  const at::Tensor split_rows = rows_of(blocks_.vectors.narrow(1, begin_, end_ - begin_), split);

  const auto num_roots = static_cast<std::int64_t>(roots.size());
  if (num_roots > 0) {
    const at::Tensor s = secular_vectors(roots);
    at::Tensor rows = out.narrow(0, 0, num_roots);
    at::Tensor left_out = rows.narrow(1, 0, width), right_out = rows.narrow(1, width, other);
    at::mm_out(left_out, s.narrow(1, 0, num_left), left_rows);
    at::mm_out(right_out, s.narrow(1, s.size(1) - num_right, num_right), right_rows);
  }
  out.narrow(0, num_roots, out.size(0) - num_roots).copy_(split_rows);
}

}  // namespace kvc
