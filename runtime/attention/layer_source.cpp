#include "runtime/attention/layer_source.h"

#include "core/error.h"
#include "runtime/attention/kept_group.h"

namespace kvc {

NewKeyValue NewKeyValue::narrow(std::int64_t first, std::int64_t count) const {
  const auto own = [&](const at::Tensor& x) {
    return x.defined() && x.size(0) > count ? x.narrow(0, first, count) : x;
  };
  return {own(key), own(value), own(key_before_norm), own(key_rms), own(latent), own(score)};
}

NewKeyValue LayerSource::keys_and_values(int, const AttentionInput& input) {
  return {input.weights.k_norm.over_heads(input.key), input.value};
}

at::Tensor LayerSource::read(int layer, const NewTokens& tokens, const at::Tensor& query,
                             KvCache& cache, PromptKeys& prompt) {
  store(layer, tokens, cache);
  at::Tensor output = cache.num_tokens() > 0 || !reads_prompts_exactly()
                          ? attend(layer, query, tokens.positions, cache)
                          : prompt.attend(layer, query, tokens.key, tokens.raw.value,
                                          attention_rule(context_.decoder.config(), layer));
  attended(layer, tokens, query, cache);
  return output;
}

at::Tensor LayerSource::extend(int layer, const NewTokens& tokens, const at::Tensor& query,
                               KvCache& cache) {
  store(layer, tokens, cache);
  at::Tensor output = attend(layer, query, tokens.positions, cache);
  attended(layer, tokens, query, cache);
  return output;
}

void LayerSource::prompt_read(int layer, PromptCompression& prompt) {
  prompt.code_layers_read_by(layer);
}

GroupAttended LayerSource::group_attended(const std::vector<int>& sharing, int layer,
                                          const NewTokens& tokens, const at::Tensor& query) const {
  return {.decoder = context_.decoder,
          .plan = context_.plan,
          .policy = context_.policy,
          .layers = sharing,
          .layer = layer,
          .query = query,
          .positions = tokens.positions,
          .end = tokens.prompt_end};
}

std::unique_ptr<LayerSource> make_layer_source(const SourceContext& context, int layer) {
  const KvSource source = context.plan.layers[static_cast<std::size_t>(layer)];
  switch (source) {
    case KvSource::kPlain:
      return context.policy.is_full()           ? plain_source(context, layer)
             : context.policy.prunes_channels() ? pruned_source(context, layer)
                                                : kept_source(context, layer);
    case KvSource::kLatent:
      return latent_source(context, layer);
    case KvSource::kCoded:
      return coded_source(context, layer);
    case KvSource::kFused:
      return fused_source(context, layer);
    case KvSource::kPaired:
      return paired_source(context, layer);
    default:
      fail("layer {}: the runtime has no {} layers", layer, to_string(source));
  }
}

}  // namespace kvc
