#include "runtime/attention/cached_attention.h"

#include <utility>

#include "runtime/attention/cache_segments.h"
#include "runtime/attention/latent_attention.h"
#include "runtime/attention/mla_attention.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/compression/latent_encoding.h"

namespace kvc {

CachedAttention::CachedAttention(const Decoder& decoder, const KvPlan& plan,
                                 const LatentFactors& factors, std::vector<KvCache*> caches,
                                 Pass pass, std::vector<PromptKeys*> prompts, PartTimes* times)
    : decoder_(decoder),
      plan_(plan),
      factors_(factors),
      caches_(std::move(caches)),
      pass_(pass),
      prompts_(std::move(prompts)),
      times_(times) {
  prompts_.resize(caches_.size());
}

// Angles that depend on the length of the text are those of the whole prompt in every piece of it.
at::Tensor CachedAttention::rotate(int layer, const at::Tensor& x, const TokenBatch& batch) const {
  if (!decoder_.config().depends_on_length(layer)) {
    return decoder_.rope().rotate(layer, x, batch.positions);
  }
  std::vector<at::Tensor> rotated;
  std::int64_t first = 0;
  for (std::size_t sequence = 0; sequence < caches_.size(); ++sequence) {
    const std::int64_t count = batch.lengths[sequence];
    const PromptKeys* prompt = prompts_[sequence];
    rotated.push_back(decoder_.rope().rotate(
        layer, x.narrow(0, first, count), batch.positions.narrow(0, first, count),
        prompt == nullptr ? 0 : caches_[sequence]->num_tokens() + prompt->num_tokens()));
    first += count;
  }
  return at::cat(rotated);
}

at::Tensor CachedAttention::attend(int layer, const AttentionInput& input,
                                   const TokenBatch& batch) {
  const PartScope scope(times_, Part::kAttention, Part::kModel);
  if (decoder_.config().mla) {
    return attend_mla(decoder_, layer, input, batch, caches_, pass_ == Pass::kPrefill, prompts_);
  }
  const int group = plan_.group_of(layer);
  const int first_layer =
      group < 0 ? layer : plan_.groups[static_cast<std::size_t>(group)].first_layer;
  const Place place{layer, group, layer - first_layer};
  const NewTokens tokens = new_tokens(place, input, batch);
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (std::size_t sequence = 0; sequence < caches_.size(); ++sequence) {
    const std::int64_t count = batch.lengths[sequence];
    store(place, tokens, batch.positions, *caches_[sequence], first, count);
    outputs.push_back(attend_sequence(place, tokens, batch.positions, sequence, first, count));
    first += count;
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
}

CachedAttention::NewTokens CachedAttention::new_tokens(const Place& place,
                                                       const AttentionInput& input,
                                                       const TokenBatch& batch) {
  NewTokens tokens;
  KeyValue exact{input.key, input.value};
  if (place.group >= 0) {
    const auto group = static_cast<std::size_t>(place.group);
    const GroupFactors& factors = factors_.groups[group];
    const bool split = plan_.groups[group].split_kv;
    const bool truncated =
        pass_ == Pass::kPrefill && plan_.policy.prefill == PrefillMode::kTruncated;
    if (needs_latents(plan_, place.group)) {
      tokens.latent = at::linear(input.hidden, factors.latent_proj);
    }
    if (split || truncated) {
      exact = reconstruct(decoder_, input.weights, factors,
                          factors.layers[static_cast<std::size_t>(place.index)], tokens.latent);
    }
    if (input.weights.k_norm.defined()) {
      tokens.key_rms = key_rms(exact.key, input.weights.k_norm);
    }
    if (!split && !keeps_latents(plan_, place.group) && plan_.policy.rule != MergeRule::kLs) {
      weigh(place, tokens.latent);
    }
  }
  tokens.query = rotate(place.layer, input.query, batch);
  tokens.key = rotate(place.layer, input.weights.k_norm.over_heads(exact.key), batch);
  tokens.pending_key = stores_raw_keys(decoder_.config(), place.layer) ? exact.key : tokens.key;
  tokens.value = exact.value;
  return tokens;
}

// sum_l w_l A x_l grows with every layer of the group.
void CachedAttention::weigh(const Place& place, const at::Tensor& latent) {
  const double weight = plan_.groups[static_cast<std::size_t>(place.group)]
                            .merge_weights[static_cast<std::size_t>(place.index)];
  const at::Tensor term = latent.to(at::kFloat) * weight;
  if (place.index == 0) {
    first_latent_ = latent;
    weighted_latent_ = term;
  } else {
    weighted_latent_ = weighted_latent_ + term;
  }
}

void CachedAttention::store(const Place& place, const NewTokens& tokens,
                            const at::Tensor& positions, KvCache& cache, std::int64_t first,
                            std::int64_t count) {
  const auto own = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
  if (place.group < 0) {
    cache.plain_layer(place.layer).append(own(tokens.key), own(tokens.value));
    return;
  }
  LatentStore& group = cache.group(place.group);
  const LatentGroup& spec = plan_.groups[static_cast<std::size_t>(place.group)];
  if (spec.split_kv) {
    group.append_latent(place.index, own(tokens.latent), own(positions));
    return;
  }
  group.append_pending(place.index, own(tokens.pending_key), own(tokens.value));
  if (group.keeps_latents()) {
    group.hold_latent(place.index, own(tokens.latent));
  } else if (group.holds_key_rms()) {
    group.hold_key_rms(place.index, own(tokens.key_rms));
  } else if (plan_.policy.rule != MergeRule::kLs && place.index == spec.num_layers - 1) {
    group.hold_weighted(own(weighted_latent_), row_cosine(own(first_latent_), own(tokens.latent)));
  }
}

at::Tensor CachedAttention::attend_sequence(const Place& place, const NewTokens& tokens,
                                            const at::Tensor& positions, std::size_t sequence,
                                            std::int64_t first, std::int64_t count) {
  const KvCache& cache = *caches_[sequence];
  const auto own = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
  const AttentionRule rule = attention_rule(decoder_.config(), place.layer);
  if (cache.num_tokens() == 0 && pass_ == Pass::kPrefill) {
    if (PromptKeys* prompt = prompts_[sequence]) {
      prompt->append(place.layer, own(tokens.key), own(tokens.value));
      return attend_prompt(own(tokens.query), prompt->key(), prompt->value(), rule);
    }
    return causal_attention(own(tokens.query), own(tokens.key), own(tokens.value), rule);
  }
  if (place.group < 0) {
    return attend_plain(decoder_, place.layer, cache.plain_layer(place.layer),
                        plan_.policy.sink_tokens, own(tokens.query), own(positions));
  }
  const GroupLayer layer{plan_, place.group, place.index,
                         factors_.groups[static_cast<std::size_t>(place.group)]};
  return attend_group(decoder_, layer, cache.group(place.group), own(tokens.query), own(positions));
}

}  // namespace kvc
