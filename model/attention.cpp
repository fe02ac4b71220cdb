#include <algorithm>

#include "core/error.h"
#include "model/bfloat16_attention.h"
#include "model/decoder.h"
#include "model/flash_attention.h"
#include "model/fused_ops.h"

namespace kvc {
namespace {

constexpr std::int64_t kQueriesPerBlock = 512;

// LibTorch's kernel for the CPU is faster, and closer, on float32 copies than on 16-bit types.
at::Tensor attention_type(const at::Tensor& x) {
  return x.is_cpu() && x.element_size() == 2 ? x.to(at::kFloat) : x;
}

// Softmax over capped scores, composed of operators. query [batch_size, num_heads, num_queries,
// head_dim], key and value likewise with num_kv_heads; mask [num_queries, num_keys] bool.
at::Tensor capped_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& mask, const AttentionRule& rule) {
  const double scale = attention_scale(query, rule);
  const std::int64_t num_kv_heads = key.size(1), num_queries = query.size(2);
  const at::Tensor queries = query.unflatten(1, {num_kv_heads, -1}).flatten(2, 3);
  const at::Tensor scores = at::matmul(queries * scale, key.transpose(-2, -1)).to(at::kFloat);
  const at::Tensor capped = (scores / rule.softcap).tanh() * rule.softcap;
  const at::Tensor masked =
      capped.unflatten(2, {-1, num_queries}).masked_fill(mask.logical_not(), -INFINITY);
  const at::Tensor weights = masked.softmax(-1).to(value.scalar_type()).flatten(2, 3);
  return at::matmul(weights, value).unflatten(2, {-1, num_queries}).flatten(1, 2);
}

at::Tensor fast_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& mask, const AttentionRule& rule) {
  const std::int64_t width = common_width(key, value);
  const double scale = attention_scale(query, rule);
  return at::scaled_dot_product_attention(padded_to(query, width), padded_to(key, width),
                                          padded_to(value, width), mask, /*dropout_p=*/0.0,
                                          /*is_causal=*/!mask.has_value(), scale,
                                          /*enable_gqa=*/query.size(1) != key.size(1))
      .narrow(-1, 0, value.size(-1));
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
          : fast_attention(heads_first(query), heads_first(key), heads_first(value), mask, rule);
  return attended.transpose(1, 2).to(query.scalar_type());
}

// Blocks of queries see only the keys that any of them can, so that the mask stays small. The queries
// are those of the last tokens.
at::Tensor blocked_attention(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const AttentionRule& rule) {
  const std::int64_t seq_len = key.size(1), window = rule.window.value_or(seq_len);
  const std::int64_t first_query = seq_len - query.size(1);
  std::vector<at::Tensor> blocks;
  for (std::int64_t begin = first_query; begin < seq_len; begin += kQueriesPerBlock) {
    const std::int64_t end = std::min(begin + kQueriesPerBlock, seq_len);
    const std::int64_t first_key = std::max<std::int64_t>(0, begin - window + 1);
    const at::TensorOptions tokens = query.options().dtype(at::kLong);
    const at::Tensor distance = at::arange(begin, end, tokens).unsqueeze(1) -
                                at::arange(first_key, end, tokens).unsqueeze(0);
    blocks.push_back(attend_heads(query.slice(1, begin - first_query, end - first_query),
                                  key.slice(1, first_key, end), value.slice(1, first_key, end),
                                  (distance >= 0).logical_and(distance < window), rule));
  }
  return at::cat(blocks, 1);
}

// Sequences of equal length. query [batch_size, num_queries, num_heads, head_dim], of the last tokens,
// key and value [batch_size, seq_len, num_kv_heads, head_dim]. The same shape as the query.
at::Tensor batched_causal_attention(const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value, const AttentionRule& rule) {
  if (can_attend_in_bfloat16(query, rule) && !wants_gradient(key) && !wants_gradient(value)) {
    std::vector<at::Tensor> outputs;
    for (std::int64_t i = 0; i < query.size(0); ++i) {
      outputs.push_back(bfloat16_attention(query[i], key[i], value[i], rule));
    }
    return outputs.size() == 1 ? outputs.front().unsqueeze(0) : at::stack(outputs);
  }
  if (has_flash_attention(query, key, value, rule)) {
    return flash_attention(query, key, value, rule, /*is_causal=*/true).output;
  }
  const bool slides = rule.window && key.size(1) > *rule.window;
  const bool square = query.size(1) == key.size(1);
  return slides || rule.softcap != 0 || !square
             ? blocked_attention(query, key, value, rule)
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

at::Tensor rotate_tokens(const RopeTables& rope, int layer, const at::Tensor& x,
                         const TokenBatch& batch) {
  if (batch.lengths.size() == 1 || !rope.depends_on_length(layer)) {
    return rope.rotate(layer, x, batch.positions);
  }
  std::vector<at::Tensor> rotated;
  std::int64_t first = 0;
  for (const std::int64_t length : batch.lengths) {
    rotated.push_back(
        rope.rotate(layer, x.narrow(0, first, length), batch.positions.narrow(0, first, length)));
    first += length;
  }
  return at::cat(rotated);
}

at::Tensor finish_key(const LayerWeights& weights, const RopeTables& rope, int layer,
                      const at::Tensor& key, const at::Tensor& positions, std::int64_t length) {
  return rope.rotate(layer, weights.k_norm.over_heads(key), positions, length);
}

namespace {

struct KeysAndValues {
  at::Tensor key;    // [num_tokens, num_kv_heads, head_dim], post-RoPE
  at::Tensor value;  // [num_tokens, num_kv_heads, head_dim or v_head_dim]
};

KeysAndValues keys_and_values(const ModelConfig& config, const RopeTables& rope, int layer,
                              const AttentionInput& input, const TokenBatch& batch) {
  if (config.mla) {
    MlaKeyValue expanded = expand_latents(*config.mla, input.weights.mla, input.latent,
                                          rotate_tokens(rope, layer, input.rotary_key, batch));
    return {std::move(expanded.key), std::move(expanded.value)};
  }
  return {rotate_tokens(rope, layer, input.weights.k_norm.over_heads(input.key), batch),
          input.value};
}

}  // namespace

at::Tensor rotate_query(const ModelConfig& config, const RopeTables& rope, int layer,
                        const at::Tensor& query, const TokenBatch& batch) {
  if (!config.mla) {
    return rotate_tokens(rope, layer, query, batch);
  }
  const std::int64_t nope = config.mla->qk_nope_head_dim;
  const at::Tensor rotary = query.narrow(-1, nope, config.mla->qk_rope_head_dim);
  return at::cat({query.narrow(-1, 0, nope), rotate_tokens(rope, layer, rotary, batch)}, -1);
}

at::Tensor FullAttention::attend(int layer, const AttentionInput& input, const TokenBatch& batch) {
  const AttentionRule rule = attention_rule(config_, layer);
  const at::Tensor query = rotate_query(config_, rope_, layer, input.query, batch);
  const auto [key, value] = keys_and_values(config_, rope_, layer, input, batch);
  const auto batch_size = static_cast<std::int64_t>(batch.lengths.size());
  const bool equal_lengths = std::adjacent_find(batch.lengths.begin(), batch.lengths.end(),
                                                std::not_equal_to<>()) == batch.lengths.end();
  if (equal_lengths) {
    const auto split = [&](const at::Tensor& x) {
      return x.unflatten(0, {batch_size, batch.lengths.front()});
    };
    return batched_causal_attention(split(query), split(key), split(value), rule)
        .reshape({query.size(0), -1});
  }
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (const std::int64_t length : batch.lengths) {
    outputs.push_back(causal_attention(query.narrow(0, first, length), key.narrow(0, first, length),
                                       value.narrow(0, first, length), rule));
    first += length;
  }
  return at::cat(outputs);
}

}  // namespace kvc
