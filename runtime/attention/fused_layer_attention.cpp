#include "runtime/attention/fused_layer_attention.h"

#include <algorithm>
#include <vector>

#include "runtime/attention/decode.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/prompt_attention.h"

namespace kvc {
namespace {

// The first rows of a store in the order of positions, `codes` as read_codes makes them of rows [n, ...].
template <typename ReadCodes>
at::Tensor in_order(const RowStore& exact, const std::optional<RowStore>& codes,
                    const TokenOrder& order, const ReadCodes& read_codes) {
  if (order.codes == 0) {
    return exact.rows(0, order.num_tokens(), at::kFloat);
  }
  return at::cat({exact.rows(0, order.sinks, at::kFloat),
                  read_codes(codes->rows(0, order.codes, at::kFloat)),
                  exact.rows(order.sinks, order.last, at::kFloat)});
}

TokenOrder order_of(const KvCache& cache, const KeyValueStore& store) {
  return {store.num_exact(), store.num_codes(), cache.plan().policy.sink_tokens};
}

// Post-RoPE keys of a layer that stores them.
at::Tensor stored_key(const Decoder& decoder, int layer, const KvCache& cache,
                      std::int64_t num_tokens) {
  const KeyValueStore& store = cache.plain_layer(layer);
  const TokenOrder order = order_of(cache, store).up_to(num_tokens);
  return in_order(store.key, store.key_codes, order, [&](const at::Tensor& codes) {
    return decoder.config().depends_on_length(layer)
               ? codes
               : decoder.rope().rotate(layer, codes, order.code_positions());
  });
}

at::Tensor stored_value(int layer, const KvCache& cache, std::int64_t num_tokens) {
  const KeyValueStore& store = cache.plain_layer(layer);
  const TokenOrder order = order_of(cache, store).up_to(num_tokens);
  return in_order(store.value, store.value_codes, order,
                  [](const at::Tensor& codes) { return codes; });
}

// Matrices mix channels that RoPE turns by different angles: they take keys before it.
at::Tensor fused_key(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                     std::int64_t num_tokens) {
  const bool before_rope = factors.weights.key.form == FusionForm::kFull;
  const at::Tensor positions = at::arange(num_tokens, at::kLong);
  std::vector<at::Tensor> sources;
  for (const int source : factors.layer.key_sources) {
    const at::Tensor key = stored_key(decoder, source, cache, num_tokens);
    sources.push_back(before_rope ? decoder.rope().unrotate(source, key, positions) : key);
  }
  const at::Tensor key = fuse(factors.weights.key, factors.pairs, sources);
  return before_rope ? decoder.rope().rotate(factors.layer.layer, key, positions) : key;
}

// The last query through the kernels.
at::Tensor attend_folded(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                         const at::Tensor& query, std::int64_t num_tokens) {
  const FusedLayer& layer = factors.layer;
  const Fusion &key = factors.weights.key, &value = factors.weights.value;
  const AttentionRule rule = attention_rule(decoder.config(), layer.layer);
  const std::int64_t seen = std::min(rule.window.value_or(num_tokens), num_tokens);
  const std::int64_t num_kv_heads = decoder.config().num_kv_heads;
  const TokenOrder order =
      order_of(cache, cache.plain_layer(layer.key_sources[0])).up_to(num_tokens);
  const CodedKeys codes(decoder, layer.layer, order.codes == 0 ? 1 : num_tokens);
  const auto ranges = [&](std::size_t source) {
    return plain_ranges(cache.plain_layer(layer.key_sources[source]),
                        cache.plain_layer(layer.value_sources[source]), order, codes.are_raw(),
                        seen);
  };
  if (layer.key_sources.size() == 1) {
    const at::Tensor folded = fold_query(key, factors.pairs, 0, query.to(at::kFloat).unsqueeze(0));
    const at::Tensor output =
        decode_attention_partly(folded[0], num_kv_heads, ranges(0), rule, codes.raw_keys).output;
    return (output.unflatten(0, {num_kv_heads, -1}) * value.weight[0].unsqueeze(1))
        .flatten()
        .to(query.scalar_type());
  }
  const auto of = [](const Fusion& fusion, std::int64_t source) {
    return fusion.weight[source].const_data_ptr<float>();
  };
  return fused_decode_attention(query, num_kv_heads, ranges(0), ranges(1),
                                {.first_key = of(key, 0),
                                 .second_key = of(key, 1),
                                 .first_value = of(value, 0),
                                 .second_value = of(value, 1)},
                                rule, codes.raw_keys);
}

}  // namespace

FusedRows fused_rows(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                     std::int64_t num_tokens) {
  std::vector<at::Tensor> values;
  for (const int source : factors.layer.value_sources) {
    values.push_back(stored_value(source, cache, num_tokens));
  }
  return {fused_key(decoder, factors, cache, num_tokens),
          fuse(factors.weights.value, factors.pairs, values)};
}

bool can_fold(const FusedFactors& factors) {
  const FusedLayer& layer = factors.layer;
  const std::size_t sources = layer.key_sources.size();
  return layer.value_sources.size() == sources && layer.key_heads.empty() &&
         layer.value_heads.empty() &&
         ((sources == 1 && layer.form != FusionForm::kFull) ||
          (sources == 2 && layer.form == FusionForm::kChannel));
}

at::Tensor attend_fused_layer(const Decoder& decoder, const FusedFactors& factors,
                              const KvCache& cache, const at::Tensor& query,
                              const at::Tensor& positions) {
  const std::int64_t num_tokens = positions[-1].item<std::int64_t>() + 1;
  if (query.size(0) == 1 && can_fold(factors)) {
    return attend_folded(decoder, factors, cache, query[0], num_tokens).unsqueeze(0);
  }
  const FusedRows rows = fused_rows(decoder, factors, cache, num_tokens);
  return attend_prompt(query, rows.key, rows.value,
                       attention_rule(decoder.config(), factors.layer.layer));
}

}  // namespace kvc
