#include "runtime/compression/request_basis.h"

#include "core/kv_plan.h"
#include "model/eigen/subspace_iteration.h"
#include "model/eigen/symmetric_eigen.h"
#include "runtime/store/row_store.h"

namespace kvc {

namespace {

enum class Rows { kKeys, kValues, kBoth };

// For every layer, side by side.
at::Tensor side_by_side(const std::vector<LayerRows>& layers, Rows rows) {
  std::vector<at::Tensor> columns;
  for (const LayerRows& layer : layers) {
    if (rows != Rows::kValues) {
      columns.push_back(layer.key);
    }
    if (rows != Rows::kKeys) {
      columns.push_back(layer.value);
    }
  }
  return columns.empty() ? at::Tensor() : at::cat(columns, 1);
}

}  // namespace

GramSums::GramSums(std::int64_t width, at::Device device)
    : lower_(at::zeros({width, width}, at::TensorOptions(at::kDouble).device(device))) {}

void GramSums::add(const at::Tensor& rows) { lower_.add_(lower_gram(rows)); }

at::Tensor GramSums::matrix() const {
  const at::Tensor lower = lower_.tril(-1);
  return lower + lower.t() + at::diag(lower_.diagonal());
}

at::Tensor leading_directions(const at::Tensor& gram, std::int64_t rank, BasisSolver solver,
                              const at::Tensor& start) {
  const at::Tensor vectors =
      solver == BasisSolver::kSubspace
          ? leading_subspace(gram, rank, start.defined() ? start.to(gram.device()) : start).vectors
          : symmetric_eigen(gram.clone(), rank).vectors;
  return vectors.to(gram.device(), at::kFloat).contiguous();
}

std::vector<LayerEncoder> split_encoders(const at::Tensor& key, const at::Tensor& value,
                                         int num_layers) {
  const std::vector<at::Tensor> keys = key.chunk(num_layers, 1);
  const std::vector<at::Tensor> values = value.chunk(num_layers, 1);
  std::vector<LayerEncoder> encoders;
  for (std::size_t index = 0; index < keys.size(); ++index) {
    encoders.push_back({keys[index].contiguous(), values[index].contiguous()});
  }
  return encoders;
}

std::vector<LayerEncoder> split_encoders(const at::Tensor& joint, int num_layers,
                                         const KvWidths& widths) {
  std::vector<LayerEncoder> encoders;
  for (int index = 0; index < num_layers; ++index) {
    const at::Tensor layer = joint.narrow(1, index * widths.total(), widths.total());
    encoders.push_back({layer.narrow(1, 0, widths.key).contiguous(),
                        layer.narrow(1, widths.key, widths.value).contiguous()});
  }
  return encoders;
}

std::vector<LayerEncoder> fit_directions(const KvPlan& plan, const LatentGroup& group,
                                         const at::Tensor& positions, const GroupRows& rows,
                                         const std::vector<LayerEncoder>& earlier,
                                         at::Device device) {
  std::vector<LayerRows> before;
  for (const LayerEncoder& encoder : earlier) {
    before.push_back({encoder.key.to(at::kDouble), encoder.value.to(at::kDouble)});
  }
  const auto directions = [&](Rows part, std::int64_t width, std::int64_t rank) {
    GramSums sums(width, device);
    for (std::int64_t first = 0; first < positions.size(0); first += kChunkTokens) {
      std::vector<LayerRows> layers;
      for (int index = 0; index < group.num_layers; ++index) {
        layers.push_back(rows(index, first, positions.slice(0, first, first + kChunkTokens)));
      }
      sums.add(side_by_side(layers, part));
    }
    return leading_directions(sums.matrix(), rank, plan.request->solver,
                              side_by_side(before, part));
  };
  const KvWidths widths = grouped_widths(plan);
  if (!group.split_kv) {
    return split_encoders(directions(Rows::kBoth, group.num_layers * widths.total(), group.rank),
                          group.num_layers, widths);
  }
  const at::Tensor key = directions(Rows::kKeys, group.num_layers * widths.key, group.key_rank);
  return split_encoders(
      key, directions(Rows::kValues, group.num_layers * widths.value, group.value_rank),
      group.num_layers);
}

}  // namespace kvc
