#include "model/eigen/band_reduction.h"

#include <algorithm>

#include "model/eigen/chase_kernel.h"

namespace kvc {
namespace {

// Calls body(first, width) for the parts of the diagonal blocks that lie behind `begin`.
template <typename Body>
void for_each_block(std::int64_t begin, std::int64_t n, const Body& body) {
  for (std::int64_t first = begin; first < n;) {
    const std::int64_t end = std::min(n, (first / kSymmetricBlock + 1) * kSymmetricBlock);
    body(first, end - first);
    first = end;
  }
}

// A V for the trailing matrix from `begin` on. v [n - begin, width].
at::Tensor multiply_trailing(const at::Tensor& matrix, std::int64_t begin, const at::Tensor& v) {
  const std::int64_t n = matrix.size(0);
  at::Tensor product = at::zeros_like(v);
  for_each_block(begin, n, [&](std::int64_t first, std::int64_t width) {
    const at::Tensor column = matrix.narrow(0, first, n - first).narrow(1, first, width);
    const std::int64_t row = first - begin, below = n - first - width;
    product.narrow(0, row, n - first).addmm_(column, v.narrow(0, row, width));
    if (below > 0) {
      product.narrow(0, row, width)
          .addmm_(column.narrow(0, width, below).t(), v.narrow(0, row + width, below));
    }
  });
  return product;
}

// A - V W^T - W V^T for the trailing matrix, block columns of its lower triangle.
void update_trailing(at::Tensor& matrix, std::int64_t begin, const at::Tensor& v,
                     const at::Tensor& w) {
  const std::int64_t n = matrix.size(0);
  const at::Tensor left = at::cat({v, w}, 1), right = at::cat({w, v}, 1);
  for_each_block(begin, n, [&](std::int64_t first, std::int64_t width) {
    at::Tensor column = matrix.narrow(0, first, n - first).narrow(1, first, width);
    column.addmm_(left.narrow(0, first - begin, n - first),
                  right.narrow(0, first - begin, width).t(), 1, -1);
  });
}

// Copies what the reduction leaves of `columns` columns from `first` on into the band.
void store_band(const at::Tensor& matrix, std::int64_t first, std::int64_t columns,
                std::vector<double>& band) {
  const double* element = matrix.const_data_ptr<double>();
  const std::int64_t n = matrix.size(0), stride = matrix.stride(0);
  for (std::int64_t column = first; column < first + columns; ++column) {
    const std::int64_t end = std::min(n, column + kBandWidth + 1);
    for (std::int64_t row = column; row < end; ++row) {
      band[static_cast<std::size_t>(column * kBandStride + row)] = element[row * stride + column];
    }
  }
}

}  // namespace

at::Tensor reflector_factor(const at::Tensor& products, const double* scales) {
  const std::int64_t size = products.size(0);
  at::Tensor factor = at::zeros({size, size}, products.options());
  const at::Tensor gram = products.contiguous();
  const double* g = gram.const_data_ptr<double>();
  double* t = factor.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < size; ++i) {
    t[i * size + i] = scales[i];
    for (std::int64_t r = 0; r < i; ++r) {
      double sum = 0;
      for (std::int64_t k = r; k < i; ++k) {
        sum += t[r * size + k] * g[k * size + i];
      }
      t[r * size + i] = -scales[i] * sum;
    }
  }
  return factor;
}

BandReduction reduce_to_band(at::Tensor matrix) {
  const std::int64_t n = matrix.size(0);
  BandReduction result;
  result.band.assign(static_cast<std::size_t>((n + 2 * kBandWidth) * (kBandStride + 1)), 0.0);
  std::int64_t first = 0;
  for (; n - first - kBandWidth >= 2; first += kBandWidth) {
    const std::int64_t begin = first + kBandWidth, rows = n - begin;
    at::Tensor panel = matrix.narrow(0, begin, rows).narrow(1, first, kBandWidth);
    const auto [packed, scales] = at::geqrf(panel);
    const std::int64_t width = scales.size(0);  // reflectors: fewer than columns in the last panel
    panel.copy_(packed.triu());
    store_band(matrix, first, kBandWidth, result.band);
    const at::Tensor v = packed.narrow(1, 0, width).tril(-1).contiguous();
    v.diagonal().fill_(1);
    panel.zero_().narrow(1, 0, width).copy_(v);
    const at::Tensor factor =
        reflector_factor(at::mm(v.t(), v), scales.contiguous().const_data_ptr<double>());
    const at::Tensor x = at::mm(multiply_trailing(matrix, begin, v), factor);
    const at::Tensor half = at::mm(factor.t(), at::mm(v.t(), x)).mul_(0.5);
    update_trailing(matrix, begin, v, at::addmm(x, v, half, 1, -1));
    result.factors.push_back(factor);
  }
  store_band(matrix, first, n - first, result.band);
  result.reflectors = std::move(matrix);
  return result;
}

}  // namespace kvc
