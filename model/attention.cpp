#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/decoder.h"

namespace kvc {
namespace {

constexpr std::int64_t kQueriesPerBlock = 512;

// The CPU's attention kernel is faster, and closer, on float32 copies than on 16-bit types.
at::Tensor attention_type(const at::Tensor& x) {
  return x.is_cpu() && x.element_size() == 2 ? x.to(at::kFloat) : x;
}

// Softmax over capped scores, composed of operators. query [batch_size, num_heads, num_queries,
// head_dim], key and value likewise with num_kv_heads; mask [num_queries, num_keys] bool.
at::Tensor capped_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& mask, const AttentionRule& rule) {
  const double scale = rule.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  const std::int64_t num_kv_heads = key.size(1), num_queries = query.size(2);
  const at::Tensor queries = query.unflatten(1, {num_kv_heads, -1}).flatten(2, 3);
  const at::Tensor scores = at::matmul(queries * scale, key.transpose(-2, -1)).to(at::kFloat);
  const at::Tensor capped = (scores / rule.softcap).tanh() * rule.softcap;
  const at::Tensor masked =
      capped.unflatten(2, {-1, num_queries}).masked_fill(mask.logical_not(), -INFINITY);
  const at::Tensor weights = masked.softmax(-1).to(value.scalar_type()).flatten(2, 3);
  return at::matmul(weights, value).unflatten(2, {-1, num_queries}).flatten(1, 2);
}

// query [batch_size, num_queries, num_heads, head_dim], key and value likewise with num_keys and
// num_kv_heads. `mask` [num_queries, num_keys] bool, or none: causal, with as many keys as queries.
at::Tensor attend_heads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const std::optional<at::Tensor>& mask, const AttentionRule& rule) {
  const auto heads_first = [](const at::Tensor& x) { return attention_type(x).transpose(1, 2); };
  const at::Tensor attended =
      rule.softcap != 0
          ? capped_attention(heads_first(query), heads_first(key), heads_first(value), mask.value(),
                             rule)
          : at::scaled_dot_product_attention(heads_first(query), heads_first(key),
                                             heads_first(value), mask, /*dropout_p=*/0.0,
                                             /*is_causal=*/!mask.has_value(), rule.scale,
                                             /*enable_gqa=*/query.size(2) != key.size(2));
  return attended.transpose(1, 2).to(query.scalar_type());
}

// Blocks of queries see only the keys that any of them can, so that the mask stays small.
at::Tensor blocked_attention(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const AttentionRule& rule) {
  const std::int64_t seq_len = query.size(1), window = rule.window.value_or(seq_len);
  std::vector<at::Tensor> blocks;
  for (std::int64_t begin = 0; begin < seq_len; begin += kQueriesPerBlock) {
    const std::int64_t end = std::min(begin + kQueriesPerBlock, seq_len);
    const std::int64_t first_key = std::max<std::int64_t>(0, begin - window + 1);
    const at::Tensor distance = at::arange(begin, end, at::kLong).unsqueeze(1) -
                                at::arange(first_key, end, at::kLong).unsqueeze(0);
    blocks.push_back(attend_heads(query.slice(1, begin, end), key.slice(1, first_key, end),
                                  value.slice(1, first_key, end),
                                  (distance >= 0).logical_and(distance < window), rule));
  }
  return at::cat(blocks, 1);
}

// Sequences of equal length. query [batch_size, seq_len, num_heads, head_dim], key and value likewise
// with num_kv_heads. The same shape as the query.
at::Tensor batched_causal_attention(const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value, const AttentionRule& rule) {
  const bool slides = rule.window && query.size(1) > *rule.window;
  return slides || rule.softcap != 0 ? blocked_attention(query, key, value, rule)
                                     : attend_heads(query, key, value, std::nullopt, rule);
}

}  // namespace

AttentionRule attention_rule(const ModelConfig& config, int layer) {
  return {.window = config.layer(layer).window,
          .scale = config.attention_scale,
          .softcap = config.score_softcap};
}

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionRule& rule) {
  return batched_causal_attention(query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), rule)
      .reshape({query.size(0), -1});
}

at::Tensor finish_key(const LayerWeights& weights, const RopeTables& rope, int layer,
                      const at::Tensor& key, const at::Tensor& positions, std::int64_t length) {
  return rope.rotate(layer, weights.k_norm.over_heads(key), positions, length);
}

at::Tensor FullAttention::attend(int layer, const AttentionInput& input, const TokenBatch& batch) {
  const AttentionRule rule = attention_rule(config_, layer);
  const at::Tensor query = rope_.rotate(layer, input.query, batch.positions);
  const at::Tensor key = finish_key(input.weights, rope_, layer, input.key, batch.positions);
  const auto batch_size = static_cast<std::int64_t>(batch.lengths.size());
  const bool equal_lengths = std::adjacent_find(batch.lengths.begin(), batch.lengths.end(),
                                                std::not_equal_to<>()) == batch.lengths.end();
  if (equal_lengths) {
    const auto split = [&](const at::Tensor& x) {
      return x.unflatten(0, {batch_size, batch.lengths.front()});
    };
    return batched_causal_attention(split(query), split(key), split(input.value), rule)
        .reshape({query.size(0), -1});
  }
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (const std::int64_t length : batch.lengths) {
    outputs.push_back(causal_attention(query.narrow(0, first, length), key.narrow(0, first, length),
                                       input.value.narrow(0, first, length), rule));
    first += length;
  }
  return at::cat(outputs);
}

}  // namespace kvc
