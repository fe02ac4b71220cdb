#include "convert/latent/merging.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include "model/eigen/symmetric_eigen.h"

namespace kvc {
namespace {

constexpr double kMaxCondition = 200;

// Two channels that RoPE turns together, and the layer and KV head they belong to.
struct Pair {
  std::int64_t first = 0, second = 0;  // rows of the key part
  std::size_t head = 0;                // among num_layers * num_kv_heads
};

std::vector<Pair> rope_pairs(const LatentGroup& group, std::int64_t kv_dim, std::int64_t head_dim) {
  std::vector<Pair> pairs;
  const std::int64_t half = head_dim / 2;
  for (std::int64_t channel = 0; channel < group.num_layers * kv_dim; channel += head_dim) {
    for (std::int64_t j = 0; j < half; ++j) {
      pairs.push_back(
          {channel + j, channel + j + half, static_cast<std::size_t>(channel / head_dim)});
    }
  }
  return pairs;
}

// Row of the stacked vector (per layer the key and then the value) that is number `row` of the keys.
std::int64_t stacked_row(std::int64_t row, std::int64_t kv_dim) {
  return row / kv_dim * 2 * kv_dim + row % kv_dim;
}

at::Tensor key_rows(const LatentGroup& group, std::int64_t kv_dim, const at::Tensor& proj) {
  return proj.view({group.num_layers, 2, kv_dim, proj.size(1)})
      .select(1, 0)
      .reshape({-1, proj.size(1)});
}

// Greedy pivoting: the norms of what the rows have outside the span of those chosen so far.
class Residuals {
 public:
  explicit Residuals(at::Tensor rows)
      : rows_(std::move(rows)),
        basis_(at::zeros({rows_.size(1), rows_.size(1)}, at::kDouble)),
        norms_(rows_.square().sum(1)) {}

  double norm(std::int64_t row) const { return norms_.const_data_ptr<double>()[row]; }

  // Adds the direction of `row` to the span.
  void choose(std::int64_t row) {
    at::Tensor direction = rows_[row].clone();
    const at::Tensor span = basis_.narrow(0, 0, size_);
    for (int pass = 0; pass < 2 && size_ > 0; ++pass) {  // twice is enough for orthogonality
      direction.sub_(at::mv(span.t(), at::mv(span, direction)));
    }
    const double length = direction.norm().item<double>();
    if (length > 0) {
      direction.div_(length);
    }
    basis_[size_++].copy_(direction);
    norms_.sub_(at::mv(rows_, direction).square_()).clamp_min_(0);
    norms_[row].zero_();
  }

 private:
  at::Tensor rows_;   // [n, rank]
  at::Tensor basis_;  // [rank, rank], the first size_ rows orthonormal
  at::Tensor norms_;  // [n] squares
  std::int64_t size_ = 0;
};

// `quota`: pairs of every head; 0: any number. Ascending rows of the key part.
std::vector<std::int64_t> choose_rows(const at::Tensor& keys, const std::vector<Pair>& pairs,
                                      std::int64_t rank, std::int64_t quota) {
  Residuals residuals(keys);
  std::vector<std::int64_t> taken(pairs.back().head + 1, 0), rows;
  std::vector<bool> used(pairs.size(), false);
  while (static_cast<std::int64_t>(rows.size()) < rank) {
    double largest = -1;
    std::size_t best = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const double norm = residuals.norm(pairs[i].first) + residuals.norm(pairs[i].second);
      if (!used[i] && (quota == 0 || taken[pairs[i].head] < quota) && norm > largest) {
        largest = norm;
        best = i;
      }
    }
    used[best] = true;
    ++taken[pairs[best].head];
    for (const std::int64_t row : {pairs[best].first, pairs[best].second}) {
      if (static_cast<std::int64_t>(rows.size()) < rank) {  // the last pair of an odd rank is half
        residuals.choose(row);
        rows.push_back(row);
      }
    }
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

double condition_number(const at::Tensor& matrix) {
  const at::Tensor values = symmetric_eigen(at::mm(matrix.t(), matrix), matrix.size(1)).values;
  const double least = values[-1].item<double>(), most = values[0].item<double>();
  return least > 0 ? std::sqrt(most / least) : std::numeric_limits<double>::infinity();
}

}  // namespace

PivotGauge pivot_gauge(const LatentGroup& group, std::int64_t kv_dim, std::int64_t head_dim,
                       const at::Tensor& reconstruct_proj) {
  const std::int64_t rank = reconstruct_proj.size(1);
  if (rank > group.num_layers * kv_dim || head_dim % 2 != 0) {
    return {};
  }
  const at::Tensor keys = key_rows(group, kv_dim, reconstruct_proj);
  const std::vector<Pair> pairs = rope_pairs(group, kv_dim, head_dim);
  const std::int64_t heads = group.num_layers * (kv_dim / head_dim);
  std::vector<std::int64_t> quotas{0};
  if (rank % (2 * heads) == 0) {
    quotas.insert(quotas.begin(), rank / (2 * heads));
  }
  for (const std::int64_t quota : quotas) {
    PivotGauge gauge;
    gauge.rows = choose_rows(keys, pairs, rank, quota);
    gauge.transform = keys.index_select(0, at::tensor(gauge.rows, at::kLong));
    gauge.condition = condition_number(gauge.transform);
    if (gauge.condition <= kMaxCondition) {
      for (std::int64_t& row : gauge.rows) {
        row = stacked_row(row, kv_dim);
      }
      return gauge;
    }
  }
  return {};
}

at::Tensor regauge_reconstruct(const PivotGauge& gauge, const at::Tensor& reconstruct_proj) {
  const std::int64_t rank = reconstruct_proj.size(1);
  at::Tensor solved = at::linalg_solve(gauge.transform.t(), reconstruct_proj.t()).t().contiguous();
  solved.index_copy_(0, at::tensor(gauge.rows, at::kLong), at::eye(rank, at::kDouble));
  return solved;
}

}  // namespace kvc
