#include "runtime/attention/mla_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "model/linear.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/compression/group_view.h"

namespace kvc {
namespace {

// scores [num_heads, T, n]; query i is token n - num_queries + first + i. In place.
void hide_later_tokens(at::Tensor& scores, std::int64_t first, std::int64_t num_queries) {
  if (num_queries == 1) {
    return;
  }
  const std::int64_t count = scores.size(1), num_keys = scores.size(2);
  const at::Tensor query_tokens =
      at::arange(num_keys - num_queries + first, num_keys - num_queries + first + count, at::kLong);
  const at::Tensor hidden =
      at::arange(num_keys, at::kLong).unsqueeze(0) > query_tokens.unsqueeze(1);
  scores.masked_fill_(hidden, -INFINITY);
}

// Calls chunk(first, count) over the queries, so that scores stay small; outputs [num_heads, count, v].
at::Tensor in_chunks(const at::Tensor& query, std::int64_t num_keys,
                     const std::function<at::Tensor(std::int64_t, std::int64_t)>& chunk) {
  const std::int64_t num_queries = query.size(0);
  const std::int64_t step = std::max<std::int64_t>(1, kScoresPerChunk / (query.size(1) * num_keys));
  std::vector<at::Tensor> outputs;
  for (std::int64_t first = 0; first < num_queries; first += step) {
    outputs.push_back(chunk(first, std::min(step, num_queries - first)));
  }
  return at::cat(outputs, 1).transpose(0, 1).reshape({num_queries, -1}).to(query.scalar_type());
}

// First rows, then `middle`, then the other ones.
at::Tensor around(const at::Tensor& rows, std::int64_t first, const at::Tensor& middle) {
  return at::cat({rows.narrow(0, 0, first), middle, rows.slice(0, first)});
}

// [n, kv_lora_rank], those of codes where their tokens are.
at::Tensor latents_in_order(const KeyValueStore& store, std::int64_t sink_tokens,
                            at::ScalarType dtype) {
  const at::Tensor exact = store.key.rows(dtype).squeeze(1);
  const TokenOrder order(store.num_exact(), store.num_codes(), sink_tokens);
  return order.codes == 0 ? exact
                          : around(exact, order.sinks, store.key_codes->rows(dtype).squeeze(1));
}

// Latents of merged tokens before their norm, [n, kv_lora_rank].
at::Tensor rebuilt_latents(const GroupFactors& factors, const LatentStore& store, int index,
                           at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (const MergedLatents& rows : merged_latents(factors, store, index, dtype)) {
    const at::Tensor latent = store.merged().rows(rows.first, rows.last - rows.first, dtype);
    parts.push_back(float_linear(latent, rows.layer.key, rows.layer.key_mean));
  }
  return at::cat(parts);
}

// One layer of one sequence: its own store, or its part of a group's.
class OwnLatents {
 public:
  OwnLatents(const Decoder& decoder, const LatentFactors& factors, int layer, KvCache& cache)
      : decoder_(decoder),
        factors_(factors),
        layer_(layer),
        group_(cache.plan().group_of(layer)),
        cache_(cache) {}

  // Tokens first .. first + count - 1 of the batch. `latent` after its norm, keys as they are kept.
  void append(const AttentionInput& input, std::int64_t first, const at::Tensor& latent,
              const at::Tensor& rotary_key) {
    if (group_ < 0) {
      cache_.plain_layer(layer_).append(latent.unsqueeze(1), rotary_key);
      return;
    }
    const at::Tensor raw =
        input.weights.mla.kv_a_proj(input.hidden.narrow(0, first, latent.size(0)));
    cache_.group(group_).append_own(index(), raw.narrow(-1, 0, latent.size(1)), rotary_key);
  }

  // For all tokens, in their order; keys as they are kept.
  LatentRows rows(at::ScalarType dtype) const {
    const std::int64_t sink_tokens = cache_.plan().compression.sink_tokens;
    if (group_ < 0) {
      const KeyValueStore& own = cache_.plain_layer(layer_);
      return {latents_in_order(own, sink_tokens, dtype), own.value.rows(dtype)};
    }
    const LatentStore& store = cache_.group(group_);
    const KeyValueStore& pending = store.pending(index());
    at::Tensor latent = pending.key.rows(dtype).squeeze(1), rotary_key = pending.value.rows(dtype);
    if (store.merged().num_rows() > 0) {
      const GroupFactors& factors = factors_.groups[static_cast<std::size_t>(group_)];
      const std::int64_t sinks = std::min(sink_tokens, latent.size(0));
      latent = around(latent, sinks, rebuilt_latents(factors, store, index(), dtype));
      rotary_key = around(rotary_key, sinks, store.merged_rotary(index()).rows(dtype));
    }
    return {decoder_.layer(layer_).mla.kv_a_norm(latent), rotary_key};
  }

 private:
  int index() const {
    return layer_ - cache_.plan().groups[static_cast<std::size_t>(group_)].first_layer;
  }

  const Decoder& decoder_;
  const LatentFactors& factors_;
  int layer_, group_;  // group: -1 where the layer is plain
  KvCache& cache_;
};

}  // namespace

bool prefers_latents(const MlaConfig& config, std::int64_t num_queries) {
  const std::int64_t latent = num_queries * (2 * config.kv_lora_rank + config.qk_rope_head_dim);
  const std::int64_t expansion =
      config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim);
  return latent < expansion + num_queries * (config.qk_head_dim() + config.v_head_dim);
}

at::Tensor attend_latents(const MlaConfig& config, const MlaWeights& weights, double scale,
                          const at::Tensor& query, const LatentRows& rows) {
  const std::int64_t nope = config.qk_nope_head_dim;
  const at::Tensor& kv_b_proj = weights.kv_b_proj.weight;
  const at::Tensor heads = kv_b_proj.unflatten(0, {-1, nope + config.v_head_dim});
  const at::Tensor key_proj = heads.narrow(1, 0, nope);  // [num_heads, nope, kv_lora_rank]
  const at::Tensor value_proj = heads.narrow(1, nope, config.v_head_dim);
  const at::Tensor latents = rows.latent.to(at::kFloat);  // [n, kv_lora_rank]
  const at::Tensor keys = at::cat({latents, rows.rotary_key.flatten(1).to(at::kFloat)}, 1);
  const at::Tensor by_head = query.transpose(0, 1);
  const at::Tensor absorbed =  // [num_heads, T, kv_lora_rank + qk_rope_head_dim]
      at::cat({at::bmm(by_head.narrow(-1, 0, nope), key_proj).to(at::kFloat),
               by_head.narrow(-1, nope, config.qk_rope_head_dim).to(at::kFloat)},
              -1) *
      scale;
  return in_chunks(query, latents.size(0), [&](std::int64_t first, std::int64_t count) {
    at::Tensor scores = at::matmul(absorbed.narrow(1, first, count), keys.t());
    hide_later_tokens(scores, first, query.size(0));
    const at::Tensor sums = at::matmul(scores.softmax(-1), latents).to(kv_b_proj.scalar_type());
    return at::bmm(sums, value_proj.transpose(1, 2));
  });
}

at::Tensor attend_expanded(const MlaConfig& config, const MlaWeights& weights, double scale,
                           const at::Tensor& query, const LatentRows& rows) {
  const auto dtype = query.scalar_type();
  const MlaKeyValue expanded =
      expand_latents(config, weights, rows.latent.to(dtype), rows.rotary_key.to(dtype));
  const at::Tensor keys = heads_first(expanded.key).transpose(1, 2);
  const at::Tensor values = heads_first(expanded.value);
  const at::Tensor by_head = heads_first(query) * scale;
  return in_chunks(query, keys.size(2), [&](std::int64_t first, std::int64_t count) {
    at::Tensor scores = at::bmm(by_head.narrow(1, first, count), keys);
    hide_later_tokens(scores, first, query.size(0));
    return at::bmm(scores.softmax(-1), values);
  });
}

at::Tensor attend_mla(const Decoder& decoder, const LatentFactors& factors, int layer,
                      const AttentionInput& input, const TokenBatch& batch,
                      const std::vector<KvCache*>& caches,
                      const std::vector<PromptKeys*>& prompts) {
  const MlaConfig& config = *decoder.config().mla;
  const double scale = decoder.config().attention_scale;
  const at::Tensor query =
      rotate_query(decoder.config(), decoder.rope(), layer, input.query, batch);
  const at::Tensor rotary_key = rotate_tokens(decoder.rope(), layer, input.rotary_key, batch);
  // Where the angles of all positions change with the length of the text, keys are rotated when read.
  const bool raw = decoder.config().depends_on_length(layer);
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (std::size_t sequence = 0; sequence < caches.size(); ++sequence) {
    const std::int64_t count = batch.lengths[sequence];
    const at::Tensor queries = query.narrow(0, first, count);
    const LatentRows added{input.latent.narrow(0, first, count),
                           rotary_key.narrow(0, first, count)};
    OwnLatents own_latents(decoder, factors, layer, *caches[sequence]);
    own_latents.append(input, first, added.latent,
                       raw ? input.rotary_key.narrow(0, first, count) : added.rotary_key);
    if (!prompts.empty() && caches[sequence]->num_tokens() == 0) {
      const MlaKeyValue own =
          expand_latents(config, input.weights.mla, added.latent, added.rotary_key);
      outputs.push_back(prompts[sequence]->attend(layer, queries, own.key, own.value,
                                                  attention_rule(decoder.config(), layer)));
    } else {
      LatentRows cached = own_latents.rows(query.scalar_type());
      if (raw) {
        const at::Tensor positions = at::arange(cached.rotary_key.size(0), at::kLong);
        cached.rotary_key = decoder.rope().rotate(layer, cached.rotary_key, positions);
      }
      const auto attend = prefers_latents(config, count) ? attend_latents : attend_expanded;
      outputs.push_back(attend(config, input.weights.mla, scale, queries, cached));
    }
    first += count;
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
}

}  // namespace kvc
