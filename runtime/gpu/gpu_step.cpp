#include "runtime/gpu/gpu_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "core/error.h"
#include "model/decoder.h"
#include "runtime/gpu/layer_launches.h"

namespace kvc {
namespace {

DeviceActivation activation_of(Activation activation) {
  return activation == Activation::kSilu   ? DeviceActivation::kSilu
         : activation == Activation::kGelu ? DeviceActivation::kGelu
                                           : DeviceActivation::kGeluTanh;
}

}  // namespace

class StepBuilder {
 public:
  StepBuilder(const GpuModel& model, const GpuCache& cache, const StepSequences& sequences,
              StepExecutor& executor, GpuStep& step)
      : model_(model),
        config_(model.config),
        cache_(cache),
        step_(step),
        launches_(model, cache, step.state_, step.memory_, sequences.capacity, executor),
        layers_(make_layer_launches(launches_)) {
    add_embedding();
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      add_layer(layer);
    }
    add_head(sequences.sampling);
    step_.program_ = std::move(launches_.program);
    step_.constants_ = std::move(launches_.constants);
  }

 private:
  void add_embedding() {
    const ModelWeights& weights = model_.weights;
    const bool has_table = weights.embed_tokens.defined();
    const at::Tensor& table = has_table ? weights.embed_tokens : weights.lm_head.weight;
    launches_.add(EmbedRows{
        .ids = launches_.pointer<std::int32_t>(step_.state_.ids),
        .num_rows = narrow_size(launches_.num_sequences),
        .width = narrow_size(config_.hidden_size),
        .table = table.data_ptr(),
        .scales = has_table ? nullptr : launches_.pointer<void>(weights.lm_head.scales),
        .element = launches_.element,
        .scale =
            at::scalar_tensor(config_.embedding_scale, model_.dtype).to(at::kFloat).item<float>(),
        .output = launches_.pointer<float>(step_.memory_.hidden)});
  }

  DeviceRope rope_of(int layer) {
    const int table = config_.layer(layer).rope;
    if (table < 0) {
      return {};
    }
    const auto found = ropes_.find(table);
    if (found != ropes_.end()) {
      return found->second;
    }
    const RopeRows rows = model_.angles(layer, launches_.capacity);
    launches_.keep(rows.cos);
    launches_.keep(rows.sin);
    return ropes_.emplace(table, device_rope(rows)).first->second;
  }

  LayerLaunches& launches_of(int layer) { return *layers_[static_cast<std::size_t>(layer)]; }

  std::int32_t* first_rows_of(int layer) const {
    return config_.layer(layer).window ? launches_.pointer<std::int32_t>(step_.state_.first_rows) +
                                             layer * launches_.num_sequences
                                       : nullptr;
  }

  void add_rows(int layer) {
    const LayerWeights& weights = model_.layers[static_cast<std::size_t>(layer)];
    KVC_CHECK(!weights.q_norm.bias.defined() && !weights.k_norm.bias.defined(),
              "--device cuda: layer {} has layer norms on queries and keys, which are not "
              "supported; use --device cpu",
              layer);
    AppendRows append{
        .projected = launches_.pointer<float>(step_.memory_.projected),
        .num_sequences = narrow_size(launches_.num_sequences),
        .num_heads = narrow_size(config_.num_heads),
        .num_kv_heads =
            launches_of(layer).makes_keys(layer) ? narrow_size(config_.num_kv_heads) : 0,
        .head_dim = narrow_size(config_.head_dim),
        .element = launches_.element,
        .query_norm = launches_.numbers(weights.q_norm.weight),
        .key_norm = launches_.numbers(weights.k_norm.weight),
        .norm_whole = weights.q_norm.defined() && weights.q_norm.weight.size(0) != config_.head_dim,
        .norm_epsilon = static_cast<float>(weights.q_norm.eps),
        .rope = rope_of(layer),
        .positions = launches_.pointer<std::int32_t>(step_.state_.positions),
        .query = step_.memory_.query.data_ptr(),
        .first_rows = first_rows_of(layer),
        .window = narrow_size(config_.layer(layer).window.value_or(0))};
    launches_of(layer).set_stores(layer, append);
    launches_.add(append);
  }

  void add_attention(int layer) {
    const AttentionRule rule = attention_rule(config_, layer);
    DenseAttention attention;
    attention.query = step_.memory_.query.data_ptr();
    attention.element = launches_.element;
    attention.num_rows = launches_.pointer<std::int32_t>(step_.state_.num_rows);
    attention.first_rows = first_rows_of(layer);
    attention.num_sequences = narrow_size(launches_.num_sequences);
    attention.num_heads = narrow_size(config_.num_heads);
    attention.num_kv_heads = narrow_size(config_.num_kv_heads);
    attention.head_dim = narrow_size(config_.head_dim);
    attention.scale = static_cast<float>(
        rule.scale.value_or(1 / std::sqrt(static_cast<double>(config_.head_dim))));
    attention.softcap = static_cast<float>(rule.softcap);
    attention.partials = step_.memory_.partials;
    launches_of(layer).add_attention(layer, attention, rope_of(layer));
  }

  void add_mlp(const LayerWeights& weights) {
    const bool is_gated = config_.arch->gated_mlp;
    FewRowsProduct product = launches_.product_of(is_gated ? weights.gate_up_proj : weights.up_proj,
                                                  step_.memory_.normed);
    product.gated = is_gated;
    product.out = narrow_size(config_.intermediate_size);
    product.activation = activation_of(config_.activation);
    product.output = step_.memory_.inner.data_ptr();
    launches_.add_product(product);
    launches_.add_to_residual(weights.down_proj, step_.memory_.inner, weights.mlp_output_norm);
  }

  void add_layer(int layer) {
    const LayerWeights& weights = model_.layers[static_cast<std::size_t>(layer)];
    launches_.add_norm(weights.input_norm);
    launches_of(layer).add_latents(layer);
    FewRowsProduct product = launches_.product_of(
        launches_of(layer).makes_keys(layer) ? weights.qkv_proj : weights.q_proj,
        step_.memory_.normed);
    product.output_float = launches_.pointer<float>(step_.memory_.projected);
    launches_.add_product(product);
    add_rows(layer);
    add_attention(layer);
    launches_.add_to_residual(weights.o_proj, step_.memory_.attended,
                              weights.attention_output_norm);
    launches_.add_norm(weights.mlp_norm);
    add_mlp(weights);
  }

  void add_head(const SamplingOptions& sampling) {
    launches_.add_norm(model_.weights.norm);
    StepState& state = step_.state_;
    FewRowsProduct product = launches_.product_of(model_.weights.lm_head, step_.memory_.normed);
    product.scale = static_cast<float>(config_.logit_scale);
    product.softcap = static_cast<float>(config_.logit_softcap);
    product.output_float = launches_.pointer<float>(state.logits);
    launches_.add_product(product);
    SampleTokens sample{.logits = launches_.pointer<float>(state.logits),
                        .num_sequences = narrow_size(launches_.num_sequences),
                        .vocab_size = narrow_size(config_.vocab_size),
                        .temperature = static_cast<float>(sampling.temperature),
                        .top_k = narrow_size(std::min(sampling.top_k, config_.vocab_size)),
                        .top_p = static_cast<float>(sampling.top_p),
                        .min_p = static_cast<float>(sampling.min_p),
                        .repetition_penalty = static_cast<float>(sampling.repetition_penalty),
                        .seen = launches_.pointer<std::uint32_t>(state.seen),
                        .seeds = launches_.pointer<std::uint64_t>(state.seeds),
                        .ids = launches_.pointer<std::int32_t>(state.ids),
                        .positions = launches_.pointer<std::int32_t>(state.positions),
                        .tokens = launches_.pointer<std::int32_t>(state.tokens),
                        .tokens_stride = launches_.capacity,
                        .given = launches_.pointer<std::int32_t>(state.given)};
    const at::Tensor counters[] = {state.num_rows, cache_.pending_rows(), cache_.pending_slots(),
                                   cache_.exact_rows(), cache_.exact_slots()};
    std::transform(std::begin(counters), std::end(counters), sample.counters,
                   [&](const auto& counter) { return launches_.pointer<std::int32_t>(counter); });
    launches_.add(sample);
  }

  const GpuModel& model_;
  const ModelConfig& config_;
  const GpuCache& cache_;
  GpuStep& step_;
  std::map<int, DeviceRope> ropes_;  // by table
  StepLaunches launches_;
  std::vector<std::shared_ptr<LayerLaunches>> layers_;
};

GpuStep::GpuStep(const GpuModel& model, const GpuCache& cache, const StepSequences& sequences,
                 StepExecutor& executor) {
  state_ = make_step_state(model.config, sequences, executor);
  memory_ = make_step_memory(model.config, model.dtype, cache.num_sequences(), sequences.capacity,
                             executor);
  rebuild(model, cache, sequences, executor);
}

void GpuStep::rebuild(const GpuModel& model, const GpuCache& cache, const StepSequences& sequences,
                      StepExecutor& executor) {
  StepBuilder(model, cache, sequences, executor, *this);
}

}  // namespace kvc
