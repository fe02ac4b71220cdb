#include "runtime/cached_attention.h"

#include <utility>

#include "runtime/cache_segments.h"
#include "runtime/decode.h"
#include "runtime/latent_encoding.h"
#include "runtime/mla_attention.h"
#include "runtime/segment_attention.h"

namespace kvc {
namespace {

// One sequence's queries over the keys and values of a plain layer, new tokens last.
at::Tensor attend_rows(const at::Tensor& query, const at::Tensor& positions,
                       const KeyValueBuffers& rows, const AttentionRule& rule) {
  const at::Tensor key = rows.key.rows(), value = rows.value.rows();
  if (query.size(0) == 1) {
    return decode_attention(query[0], key, value, rule).unsqueeze(0);
  }
  const auto dtype = query.scalar_type();
  return attend_segments(query, positions,
                         {{.key = key.to(dtype),
                           .positions = at::arange(key.size(0), at::kLong),
                           .value = value.to(dtype),
                           .latent = {},
                           .value_proj = {},
                           .value_bias = {}}},
                         rule);
}

}  // namespace

CachedAttention::CachedAttention(const Decoder& decoder, const KvPlan& plan,
                                 const LatentFactors& factors, std::vector<KvCache*> caches,
                                 Pass pass)
    : decoder_(decoder), plan_(plan), factors_(factors), caches_(std::move(caches)), pass_(pass) {}

at::Tensor CachedAttention::attend(int layer, const AttentionInput& input,
                                   const TokenBatch& batch) {
  if (decoder_.config().mla) {
    return attend_mla(decoder_, layer, input, batch, caches_, pass_ == Pass::kPrefill);
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
    outputs.push_back(
        attend_sequence(place, tokens, batch.positions, *caches_[sequence], first, count));
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
  tokens.query = rotate_tokens(decoder_.rope(), place.layer, input.query, batch);
  tokens.key = rotate_tokens(decoder_.rope(), place.layer,
                             input.weights.k_norm.over_heads(exact.key), batch);
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
    KeyValueBuffers& rows = cache.plain_layer(place.layer);
    rows.key.append(own(tokens.key));
    rows.value.append(own(tokens.value));
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
                                            const at::Tensor& positions, const KvCache& cache,
                                            std::int64_t first, std::int64_t count) {
  const auto own = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
  const AttentionRule rule = attention_rule(decoder_.config(), place.layer);
  if (cache.num_tokens() == 0 && pass_ == Pass::kPrefill) {
    return causal_attention(own(tokens.query), own(tokens.key), own(tokens.value), rule);
  }
  if (place.group < 0) {
    return attend_rows(own(tokens.query), own(positions), cache.plain_layer(place.layer), rule);
  }
  const std::vector<Segment> segments =
      cache_segments(decoder_, plan_, place.group, place.index,
                     factors_.groups[static_cast<std::size_t>(place.group)],
                     cache.group(place.group), cache.num_tokens() + count, count);
  return attend_segments(own(tokens.query), own(positions), segments, rule);
}

}  // namespace kvc
