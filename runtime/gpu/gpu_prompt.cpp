#include "runtime/gpu/gpu_prompt.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "core/error.h"
#include "model/decoder.h"

namespace kvc {
namespace {

// Attention of one prompt's next tokens over all so far, whose keys and values it adds to the cache.
class PromptAttention : public Attention {
 public:
  PromptAttention(const GpuModel& model, const GpuCache& cache, std::size_t sequence,
                  std::int64_t num_before)
      : model_(model), cache_(cache), sequence_(sequence), num_before_(num_before) {}

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    const std::int64_t count = input.query.size(0), total = num_before_ + count;
    const at::Tensor query = rotate_query(model_.config, model_.rope, layer, input.query, batch);
    const AttentionRule rule = attention_rule(model_.config, layer);
    for (const FusedFactors& factors : model_.fused) {
      if (factors.layer.layer == layer) {
        return causal_attention(query, fused_keys(factors, total).to(query.scalar_type()),
                                fused_values(factors, total).to(query.scalar_type()), rule);
      }
    }
    cache_.keys(layer, sequence_, num_before_, count)
        .copy_(finish_key(input.weights, model_.rope, layer, input.key, batch.positions));
    cache_.values(layer, sequence_, num_before_, count).copy_(input.value);
    return causal_attention(query, cache_.keys(layer, sequence_, 0, total),
                            cache_.values(layer, sequence_, 0, total), rule);
  }

 private:
  at::Tensor fused_keys(const FusedFactors& factors, std::int64_t total) const {
    std::vector<at::Tensor> sources;
    for (const int source : factors.layer.key_sources) {
      sources.push_back(cache_.keys(source, sequence_, 0, total).to(at::kFloat));
    }
    return fuse(factors.weights.key, factors.pairs, sources);
  }
  at::Tensor fused_values(const FusedFactors& factors, std::int64_t total) const {
    std::vector<at::Tensor> sources;
    for (const int source : factors.layer.value_sources) {
      sources.push_back(cache_.values(source, sequence_, 0, total).to(at::kFloat));
    }
    return fuse(factors.weights.value, factors.pairs, sources);
  }

  const GpuModel& model_;
  const GpuCache& cache_;
  std::size_t sequence_;
  std::int64_t num_before_;
};

}  // namespace

at::Tensor read_gpu_prompt(const GpuModel& model, const GpuCache& cache, std::size_t sequence,
                           const std::vector<std::int64_t>& ids, const GpuPromptOptions& options) {
  const c10::InferenceMode guard;
  const auto num_tokens = static_cast<std::int64_t>(ids.size());
  const std::int64_t chunk = options.chunk > 0 ? options.chunk : num_tokens;
  std::vector<at::Tensor> logits;
  for (std::int64_t first = 0; first < num_tokens; first += chunk) {
    if (options.stopped && options.stopped()) {
      throw Interrupted();
    }
    const std::int64_t last = std::min(num_tokens, first + chunk);
    TokenBatch batch;
    batch.ids =
        at::tensor(std::vector<std::int64_t>(ids.begin() + first, ids.begin() + last), at::kLong)
            .to(model.device());
    batch.positions = at::arange(first, last, at::kLong);
    batch.lengths = {last - first};
    PromptAttention attention(model, cache, sequence, first);
    at::Tensor hidden_states = embed(model.config, model.weights, batch.ids, model.dtype);
    for (int layer = 0; layer < model.config.num_layers; ++layer) {
      hidden_states = run_layer(model.config, model.layers[static_cast<std::size_t>(layer)], layer,
                                hidden_states, batch, attention);
    }
    if (options.all_logits) {
      logits.push_back(compute_logits(model.config, model.weights, hidden_states));
    } else if (last == num_tokens) {
      logits.push_back(compute_logits(model.config, model.weights,
                                      hidden_states.narrow(0, last - first - 1, 1)));
    }
  }
  return at::cat(logits);
}

}  // namespace kvc
