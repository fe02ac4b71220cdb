#include "convert/fusion/fused_forward.h"

#include <c10/core/GradMode.h>

#include <string_view>
#include <utility>

#include "model/tensor_names.h"

namespace kvc {
namespace {

// Whole sequences; a fused layer attends to keys (before RoPE) and values that the layers it reads showed.
class FusedAttention : public Attention {
 public:
  FusedAttention(const ModelConfig& config, const RopeTables& rope, const KvPlan& plan,
                 const FusedFactorMap* factors)
      : config_(config), plan_(plan), factors_(factors), attention_(config, rope) {}

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    const FusedLayer* fused = factors_ == nullptr ? nullptr : find(layer);
    if (fused == nullptr) {
      keys_[layer] = input.weights.k_norm.over_heads(input.key);
      values_[layer] = input.value;
      return attention_.attend(layer, input, batch);
    }
    const FusedWeights& weights = factors_->at(layer);
    const ChannelPairs pairs = channel_pairs(config_, layer);
    LayerWeights without_norm = input.weights;  // the sources' keys are normed
    without_norm.k_norm = {};
    return attention_.attend(layer,
                             {without_norm, input.hidden, input.query,
                              fuse(weights.key, pairs, rows(keys_, fused->key_sources)),
                              fuse(weights.value, pairs, rows(values_, fused->value_sources))},
                             batch);
  }
  void use(const FusedFactorMap* factors) { factors_ = factors; }

 private:
  const FusedLayer* find(int layer) const {
    for (const FusedLayer& fused : plan_.fused) {
      if (fused.layer == layer) {
        return &fused;
      }
    }
    return nullptr;
  }
  static std::vector<at::Tensor> rows(const std::map<int, at::Tensor>& of_layers,
                                      const std::vector<int>& sources) {
    std::vector<at::Tensor> found;
    for (const int source : sources) {
      found.push_back(of_layers.at(source));
    }
    return found;
  }

  const ModelConfig& config_;
  const KvPlan& plan_;
  const FusedFactorMap* factors_;  // null: every layer as it is
  FullAttention attention_;
  std::map<int, at::Tensor> keys_, values_;  // [num_tokens, num_kv_heads, head_dim]
};

}  // namespace

FusedForward::FusedForward(const Checkpoint& checkpoint, const ModelConfig& config,
                           const KvPlan& plan)
    : config_(config),
      plan_(plan),
      rope_(config, at::kFloat),
      weights_(load_model_weights(checkpoint, config, at::kFloat)) {
  for (int layer = 0; layer < config.num_layers; ++layer) {
    layers_.push_back(load_layer(checkpoint, config, layer, at::kFloat));
  }
}

std::vector<TunedWeight> FusedForward::tune_layers() {
  std::vector<TunedWeight> all;
  for (const FusedLayer& fused : plan_.fused) {
    LayerWeights& own = tuned_[fused.layer] = layers_[static_cast<std::size_t>(fused.layer)];
    for (TunedWeight& weight : tune_weights(config_, fused.layer, own)) {
      all.push_back(std::move(weight));
    }
  }
  return all;
}

at::Tensor FusedForward::logits(at::Tensor hidden_states, int first_layer, const TokenBatch& batch,
                                Attention& attention,
                                const std::map<int, LayerWeights>& tuned) const {
  for (int layer = first_layer; layer < config_.num_layers; ++layer) {
    const auto own = tuned.find(layer);
    const LayerWeights& weights =
        own == tuned.end() ? layers_[static_cast<std::size_t>(layer)] : own->second;
    hidden_states = run_layer(config_, weights, layer, hidden_states, batch, attention);
  }
  return compute_logits(config_, weights_, hidden_states);
}

// Layers below the first fused one are the same in both, and nothing in them learns.
at::Tensor FusedForward::divergence(const std::vector<std::int64_t>& ids,
                                    const FusedFactorMap& factors) const {
  const TokenBatch batch = TokenBatch::of({ids});
  const int first = plan_.fused.front().layer;
  FusedAttention attention(config_, rope_, plan_, nullptr);
  at::Tensor hidden_states, original;
  {
    const c10::NoGradGuard no_grad;
    hidden_states = embed(config_, weights_, batch.ids, at::kFloat);
    for (int layer = 0; layer < first; ++layer) {
      hidden_states = run_layer(config_, layers_[static_cast<std::size_t>(layer)], layer,
                                hidden_states, batch, attention);
    }
    FusedAttention unchanged(config_, rope_, plan_, nullptr);
    original = logits(hidden_states, first, batch, unchanged, {}).log_softmax(-1);
  }
  attention.use(&factors);
  const at::Tensor fused = logits(hidden_states, first, batch, attention, tuned_).log_softmax(-1);
  return (original.exp() * (original - fused)).sum(-1).mean();
}

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
