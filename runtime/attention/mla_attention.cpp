#include "runtime/attention/mla_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "runtime/attention/plain_attention.h"

namespace kvc {
namespace {

constexpr std::int64_t kScoresPerChunk = std::int64_t{1} << 24;  // 64 MB of float32 scores

// [T, heads, channels] as float32 [heads, T, channels].
at::Tensor heads_first(const at::Tensor& x) { return x.to(at::kFloat).transpose(0, 1); }

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

// [n, kv_lora_rank], those of codes where their tokens are.
at::Tensor latents_in_order(const KeyValueStore& store, std::int64_t sink_tokens,
                            at::ScalarType dtype) {
  const at::Tensor exact = store.key.rows(dtype).squeeze(1);
  const TokenOrder order(store.num_exact(), store.num_codes(), sink_tokens);
  return order.codes == 0
             ? exact
             : at::cat({exact.narrow(0, 0, order.sinks), store.key_codes->rows(dtype).squeeze(1),
                        exact.narrow(0, order.sinks, order.last)});
}

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

at::Tensor attend_mla(const Decoder& decoder, int layer, const AttentionInput& input,
                      const TokenBatch& batch, const std::vector<KvCache*>& caches, bool exact,
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
    KeyValueStore& rows = caches[sequence]->plain_layer(layer);
    rows.key.append(added.latent.unsqueeze(1));
    rows.value.append(raw ? input.rotary_key.narrow(0, first, count) : added.rotary_key);
    if (exact && caches[sequence]->num_tokens() == 0) {
      const MlaKeyValue own =
          expand_latents(config, input.weights.mla, added.latent, added.rotary_key);
      const AttentionRule rule = attention_rule(decoder.config(), layer);
      if (PromptKeys* prompt = prompts[sequence]) {
        prompt->append(layer, own.key, own.value);
        outputs.push_back(attend_prompt(queries, prompt->key(), prompt->value(), rule));
      } else {
        outputs.push_back(causal_attention(queries, own.key, own.value, rule));
      }
    } else {
      at::Tensor keys = rows.value.rows(query.scalar_type());
      if (raw) {
        const at::Tensor positions = at::arange(keys.size(0), at::kLong);
        keys = decoder.rope().rotate(layer, keys, positions);
      }
      const std::int64_t sinks = caches[sequence]->plan().policy.sink_tokens;
      const LatentRows cached{latents_in_order(rows, sinks, query.scalar_type()), keys};
      const auto attend = prefers_latents(config, count) ? attend_latents : attend_expanded;
      outputs.push_back(attend(config, input.weights.mla, scale, queries, cached));
    }
    first += count;
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
}

}  // namespace kvc
