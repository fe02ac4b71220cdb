// A request's own principal directions (xKV, arXiv 2503.18893): the leading right singular vectors of its
// tokens' stacked keys, and of their values.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/compression/latent_factors.h"

namespace kvc {

// sum y y^T over tokens. Products in float32, sums over blocks of tokens in float64.
class GramSums {
 public:
  explicit GramSums(std::int64_t width, at::Device device = at::kCPU);
  void add(const at::Tensor& rows);  // [n, width] float32
  // [width, width] float64, both triangles.
  at::Tensor matrix() const;

 private:
  at::Tensor lower_;
};

// The `rank` leading eigenvectors of a Gram matrix, [rank, width] float32, on its device. `start`: initial rows or
// undefined; only for the subspace solver.
at::Tensor leading_directions(const at::Tensor& gram, std::int64_t rank, BasisSolver solver,
                              const at::Tensor& start = {});

// Splits directions [key or value width, num_layers * kv_dim], or of a joint group [rank, num_layers *
// (key + value widths)] with each layer's key before its value, into the layers' encoders.
std::vector<LayerEncoder> split_encoders(const at::Tensor& key, const at::Tensor& value,
                                         int num_layers);
std::vector<LayerEncoder> split_encoders(const at::Tensor& joint, int num_layers,
                                         const KvWidths& widths);

// Keys and values of some tokens of one layer, [n, their width] float32 each, as input of principal directions.
struct LayerRows {
  at::Tensor key, value;
};
// Those of layer `index` of a group, of tokens at `positions` [n] int64, which are its tokens from `first` on.
using GroupRows =
    std::function<LayerRows(int index, std::int64_t first, const at::Tensor& positions)>;

// Principal directions of a group's tokens at `positions` by plan.request, on the device of `rows`. `earlier`: a basis
// from which the subspace solver starts, or empty.
std::vector<LayerEncoder> fit_directions(const KvPlan& plan, const LatentGroup& group,
                                         const at::Tensor& positions, const GroupRows& rows,
                                         const std::vector<LayerEncoder>& earlier,
                                         at::Device device = at::kCPU);

}  // namespace kvc
