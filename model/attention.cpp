#include <algorithm>

#include "core/error.h"
#include "model/decoder.h"

namespace kvc {
namespace {

// The CPU's attention kernel is faster, and closer, on float32 copies than on 16-bit types.
at::Tensor attention_type(const at::Tensor& x) {
  return x.is_cpu() && x.element_size() == 2 ? x.to(at::kFloat) : x;
}

// query [batch_size, num_queries, num_heads, head_dim], key and value likewise with num_keys and
// num_kv_heads. `mask` [num_queries, num_keys] bool, or none: causal, with as many keys as queries.
at::Tensor attend_heads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const std::optional<at::Tensor>& mask) {
  const auto heads_first = [](const at::Tensor& x) { return attention_type(x).transpose(1, 2); };
  return at::scaled_dot_product_attention(heads_first(query), heads_first(key), heads_first(value),
                                          mask, /*dropout_p=*/0.0, /*is_causal=*/!mask.has_value(),
                                          /*scale=*/std::nullopt,
                                          /*enable_gqa=*/query.size(2) != key.size(2))
      .transpose(1, 2)
      .to(query.scalar_type());
}

// Key j is visible to query i iff i - window < j <= i. Blocks of queries see only the keys that any of
// them can, so that the mask stays small.
at::Tensor sliding_attention(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, std::int64_t window) {
  constexpr std::int64_t kQueriesPerBlock = 512;
  const std::int64_t seq_len = query.size(1);
  std::vector<at::Tensor> blocks;
  for (std::int64_t begin = 0; begin < seq_len; begin += kQueriesPerBlock) {
    const std::int64_t end = std::min(begin + kQueriesPerBlock, seq_len);
    const std::int64_t first_key = std::max<std::int64_t>(0, begin - window + 1);
    const at::Tensor distance = at::arange(begin, end, at::kLong).unsqueeze(1) -
                                at::arange(first_key, end, at::kLong).unsqueeze(0);
    blocks.push_back(attend_heads(query.slice(1, begin, end), key.slice(1, first_key, end),
                                  value.slice(1, first_key, end),
                                  (distance >= 0).logical_and(distance < window)));
  }
  return at::cat(blocks, 1);
}

// Sequences of equal length. query [batch_size, seq_len, num_heads, head_dim], key and value likewise
// with num_kv_heads. The same shape as the query.
at::Tensor batched_causal_attention(const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value, std::optional<std::int64_t> window) {
  return window && query.size(1) > *window ? sliding_attention(query, key, value, *window)
                                           : attend_heads(query, key, value, std::nullopt);
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            std::optional<std::int64_t> window) {
  return batched_causal_attention(query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), window)
      .reshape({query.size(0), -1});
}

at::Tensor finish_key(const ModelConfig& config, const LayerWeights& weights, const RopeTable& rope,
                      const at::Tensor& key, const at::Tensor& positions) {
  return rope.rotate(
      weights.k_norm.defined() ? rms_norm(key, weights.k_norm, config.rms_norm_eps) : key,
      positions);
}

at::Tensor FullAttention::attend(int layer, const AttentionInput& input, const TokenBatch& batch) {
  const auto& window = config_.windows[static_cast<std::size_t>(layer)];
  const at::Tensor query = rope_.rotate(input.query, batch.positions);
  const at::Tensor key = finish_key(config_, input.weights, rope_, input.key, batch.positions);
  const auto batch_size = static_cast<std::int64_t>(batch.lengths.size());
  const bool equal_lengths = std::adjacent_find(batch.lengths.begin(), batch.lengths.end(),
                                                std::not_equal_to<>()) == batch.lengths.end();
  if (equal_lengths) {
    const auto split = [&](const at::Tensor& x) {
      return x.unflatten(0, {batch_size, batch.lengths.front()});
    };
    return batched_causal_attention(split(query), split(key), split(input.value), window)
        .reshape({query.size(0), -1});
  }
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (const std::int64_t length : batch.lengths) {
    outputs.push_back(causal_attention(query.narrow(0, first, length), key.narrow(0, first, length),
                                       input.value.narrow(0, first, length), window));
    first += length;
  }
  return at::cat(outputs);
}

}  // namespace kvc
