#include "model/weight_forecast.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "model/kernels/int8_matrix.h"
#include "model/tensor_names.h"

namespace kvc {
namespace {

// Matrices that are never int8: routers, the projection from latents that attention multiplies with, and embeddings that are
// not also the head.
bool stays_float(const ModelConfig& config, std::string_view name) {
  constexpr std::array<std::string_view, 4> kEndings = {
      "mlp.gate.weight", "block_sparse_moe.gate.weight", "shared_expert_gate.weight",
      "kv_b_proj.weight"};
  return (name == embedding_name(config) && !config.tied_embeddings) ||
         std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

std::int64_t int8_bytes(const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t kScaleBytes = 2;
  const std::int64_t rows = c10::multiply_integers(shape) / shape.back();
  return rows * int8_groups(shape.back()) * (kInt8Group + kScaleBytes);
}

}  // namespace

std::int64_t forecast_weight_bytes(const ModelConfig& config, at::ScalarType dtype,
                                   const std::vector<bool>& replaced_kv, WeightType type) {
  const auto bytes_of = [&](const NamedShape& tensor) {
    const bool is_int8 =
        type == WeightType::kInt8 && tensor.shape.size() > 1 && !stays_float(config, tensor.name);
    return is_int8 ? int8_bytes(tensor.shape)
                   : c10::multiply_integers(tensor.shape) *
                         static_cast<std::int64_t>(c10::elementSize(dtype));
  };
  std::int64_t bytes = 0;
  for (const NamedShape& tensor : model_tensors(config)) {
    bytes += bytes_of(tensor);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (static_cast<std::size_t>(layer) < replaced_kv.size() &&
        replaced_kv[static_cast<std::size_t>(layer)]) {
      for (const ProjectionRows& rows : {key_rows(config, layer), value_rows(config, layer)}) {
        bytes -= bytes_of({rows.tensor, {rows.num_rows, config.hidden_size}});
      }
    }
  }
  return bytes;
}

}  // namespace kvc
