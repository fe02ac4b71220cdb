#include "fisher/cache_gradient.h"

#include <c10/core/GradMode.h>

namespace kvc {
namespace {

// Attention of new tokens over cached ones and themselves, with zeros added to what is cached: the
// gradients of those zeros are the gradients of the cache.
class CachedPrefixAttention : public Attention {
 public:
  CachedPrefixAttention(const ModelConfig& config, const RopeTables& rope, const CachedRows& cached)
      : config_(config),
        rope_(rope),
        cached_(cached),
        key_offset_(at::zeros_like(cached.key).set_requires_grad(true)),
        value_offset_(at::zeros_like(cached.value).set_requires_grad(true)) {}

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    const std::int64_t num_cached = cached_.key.size(0);
    const at::Tensor cached_key =
        rope_.rotate(layer, cached_.key + key_offset_, at::arange(num_cached, at::kLong),
                     num_cached + input.query.size(0));
    const at::Tensor new_key =
        rotate_tokens(rope_, layer, input.weights.k_norm.over_heads(input.key), batch);
    return causal_attention(
        rotate_query(config_, rope_, layer, input.query, batch), at::cat({cached_key, new_key}),
        at::cat({cached_.value + value_offset_, input.value}), attention_rule(config_, layer));
  }

  at::Tensor key_gradient() const { return gradient(key_offset_); }
  at::Tensor value_gradient() const { return gradient(value_offset_); }

 private:
  // Undefined gradients: a window that ends before the cached tokens.
  static at::Tensor gradient(const at::Tensor& offset) {
    return offset.grad().defined() ? offset.grad() : at::zeros_like(offset);
  }

  const ModelConfig& config_;
  const RopeTables& rope_;
  const CachedRows& cached_;
  at::Tensor key_offset_, value_offset_;
};

}  // namespace

CacheGradient cache_gradient(const ModelConfig& config, const RopeTables& rope,
                             const LayerWeights& weights, int layer, const CachedRows& cached,
                             const at::Tensor& hidden_states, const TokenBatch& batch,
                             const at::Tensor& output_gradient, bool with_hidden) {
  const c10::AutoGradMode grad_mode(true);
  const at::Tensor input = hidden_states.detach().set_requires_grad(with_hidden);
  CachedPrefixAttention attention(config, rope, cached);
  run_layer(config, weights, layer, input, batch, attention).backward(output_gradient);
  return {attention.key_gradient(), attention.value_gradient(),
          with_hidden ? input.grad() : at::Tensor()};
}

}  // namespace kvc
