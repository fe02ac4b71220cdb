#include "fisher/backward.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace kvc {
namespace {

// a b in float32: 16-bit factors are multiplied exactly and summed in float32.
at::Tensor float_product(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cuda() && a.element_size() == 2 ? at::mm(a, b, at::kFloat)
                                              : a.to(at::kFloat).mm(b.to(at::kFloat));
}

constexpr std::int64_t kLogitElements = std::int64_t{1}
                                        << 22;  // at a time; memory is a few times that

// Full attention with zeros added to keys and values: the gradients of those zeros are the gradients of
// the projections' outputs, whether or not anything before them has a gradient.
class GradientAttention : public Attention {
 public:
  GradientAttention(const ModelConfig& config, const RopeTables& rope) : attention_(config, rope) {}

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    hidden_ = input.hidden.detach();
    key_offset_ = at::zeros_like(input.key).set_requires_grad(true);
    value_offset_ = at::zeros_like(input.value).set_requires_grad(true);
    return attention_.attend(layer,
                             {input.weights, input.hidden, input.query, input.key + key_offset_,
                              input.value + value_offset_},
                             batch);
  }

  // d loss / d W = sum over tokens of (d loss / d y) x^T.
  at::Tensor key_weight_gradient() const { return weight_gradient(key_offset_); }
  at::Tensor value_weight_gradient() const { return weight_gradient(value_offset_); }

 private:
  at::Tensor weight_gradient(const at::Tensor& offset) const {
    return float_product(offset.grad().flatten(1).t(), hidden_);
  }

  FullAttention attention_;
  at::Tensor hidden_;                     // [num_tokens, hidden_size]
  at::Tensor key_offset_, value_offset_;  // [num_tokens, num_kv_heads, head_dim]
};

// NLL of the first `num_scored` rows, summed and divided by `divisor`, some rows at a time.
// `labels` gets logits [count, vocab_size] and the first row's index; its result is int64 [count].
template <typename Labels>
LossGradient scored_gradient(const ModelConfig& config, const ModelWeights& weights,
                             const at::Tensor& hidden_states, std::int64_t num_scored,
                             double divisor, const Labels& labels) {
  const c10::AutoGradMode grad_mode(true);
  const std::int64_t chunk = std::max<std::int64_t>(1, kLogitElements / config.vocab_size);
  LossGradient result{0, at::zeros_like(hidden_states)};
  for (std::int64_t first = 0; first < num_scored; first += chunk) {
    const std::int64_t count = std::min(chunk, num_scored - first);
    const at::Tensor rows =
        hidden_states.narrow(0, first, count).detach().clone().set_requires_grad(true);
    const at::Tensor logits = compute_logits(config, weights, rows);
    const at::Tensor nll =
        at::cross_entropy_loss(logits, labels(logits.detach(), first), {}, at::Reduction::Sum) /
        divisor;
    nll.backward();
    result.loss += nll.item<double>();
    result.hidden.narrow(0, first, count).copy_(rows.grad());
  }
  return result;
}

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

LossGradient loss_gradient(const ModelConfig& config, const ModelWeights& weights,
                           const at::Tensor& hidden_states, const at::Tensor& ids) {
  const std::int64_t num_scored = ids.size(0) - 1;
  return scored_gradient(config, weights, hidden_states, num_scored,
                         static_cast<double>(num_scored),
                         [&](const at::Tensor& logits, std::int64_t first) {
                           return ids.narrow(0, first + 1, logits.size(0)).to(logits.device());
                         });
}

void check_finite_loss(const Checkpoint& checkpoint, double loss) {
  KVC_CHECK(std::isfinite(loss),
            "{}: the loss is not finite; do the weights of the last norm or the output projection "
            "hold NaN or infinity?",
            checkpoint.directory().string());
}

LossGradient sampled_loss_gradient(const ModelConfig& config, const ModelWeights& weights,
                                   const at::Tensor& hidden_states, std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return scored_gradient(
      config, weights, hidden_states, hidden_states.size(0), 1.0,
      [&](const at::Tensor& logits, std::int64_t) {
        // On the CPU: a seed's draw is the same everywhere, and a GPU's cumsum has no fixed order.
        const at::Tensor below = logits.to(at::kCPU, at::kDouble).softmax(-1).cumsum(-1);
        const at::Tensor drawn = at::rand({logits.size(0), 1}, generator, at::kDouble);
        return (below < drawn * below.narrow(1, logits.size(1) - 1, 1)).sum(1).to(logits.device());
      });
}

LayerGradient layer_gradient(const ModelConfig& config, const RopeTables& rope,
                             const LayerWeights& weights, int layer,
                             const at::Tensor& hidden_states, const TokenBatch& batch,
                             const at::Tensor& output_gradient, bool with_hidden) {
  const c10::AutoGradMode grad_mode(true);
  const at::Tensor input = hidden_states.detach().set_requires_grad(with_hidden);
  GradientAttention attention(config, rope);
  run_layer(config, weights, layer, input, batch, attention).backward(output_gradient);
  return {attention.key_weight_gradient(), attention.value_weight_gradient(),
          with_hidden ? input.grad() : at::Tensor()};
}

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
