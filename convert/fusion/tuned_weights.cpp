#include "convert/fusion/tuned_weights.h"

#include <string_view>
#include <utility>

#include "model/tensor_names.h"

namespace kvc {

std::vector<TunedWeight> tune_weights(const ModelConfig& config, int layer, LayerWeights& weights) {
  std::vector<TunedWeight> tuned;
  const auto add = [&tuned](at::Tensor& weight, TunedWeight of) {
    if (weight.defined()) {
      weight = weight.detach().clone().set_requires_grad(true);
      of.weight = weight;
      tuned.push_back(std::move(of));
    }
  };
  const std::string prefix = layer_prefix(config, layer);
  const ProjectionRows queries = query_rows(config, layer);
  add(weights.q_proj.weight, {.tensor = queries.tensor, .first_row = queries.first_row});
  add(weights.o_proj.weight, {.tensor = prefix + "self_attn.o_proj.weight"});
  const auto add_norm = [&](Norm& norm, std::string_view name) {
    const double offset = config.arch->norm == NormKind::kRmsPlusOne ? 1 : 0;
    const std::string full = prefix + std::string(name);
    add(norm.weight, {.tensor = full + ".weight", .offset = offset});
    add(norm.bias, {.tensor = full + ".bias"});
  };
  const ModuleNames names = module_names(*config.arch);
  add_norm(weights.input_norm, names.input_norm);
  add_norm(weights.q_norm, "self_attn.q_norm");
  add_norm(weights.attention_output_norm, names.attention_output_norm);
  add_norm(weights.mlp_norm, names.mlp_norm);
  add_norm(weights.mlp_output_norm, names.mlp_output_norm);
  return tuned;
}

at::Tensor stored_tensor(const Checkpoint& checkpoint, const TunedWeight& tuned) {
  at::Tensor tensor =
      load_tensor(checkpoint, tuned.tensor, checkpoint.info(tuned.tensor).shape, at::kFloat);
  tensor.narrow(0, tuned.first_row, tuned.weight.size(0))
      .copy_(tuned.weight.detach() - tuned.offset);
  return tensor;
}

}  // namespace kvc
