#include "runtime/compression/request_basis.h"

#include "model/eigen/lower_gram.h"
#include "model/eigen/subspace_iteration.h"
#include "model/eigen/symmetric_eigen.h"

namespace kvc {

GramSums::GramSums(std::int64_t width) : lower_(at::zeros({width, width}, at::kDouble)) {}

void GramSums::add(const at::Tensor& rows) { lower_.add_(lower_gram(rows)); }

at::Tensor GramSums::matrix() const {
  const at::Tensor lower = lower_.tril(-1);
  return lower + lower.t() + at::diag(lower_.diagonal());
}

at::Tensor leading_directions(const at::Tensor& gram, std::int64_t rank, BasisSolver solver,
                              const at::Tensor& start) {
  const at::Tensor vectors = solver == BasisSolver::kSubspace
                                 ? leading_subspace(gram, rank, start).vectors
                                 : symmetric_eigen(gram.clone(), rank).vectors;
  return vectors.to(at::kFloat).contiguous();
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

}  // namespace kvc
