#include "runtime/attention/fused_layer_attention.h"

#include <algorithm>
#include <vector>

#include "model/bfloat16_attention.h"
#include "runtime/attention/decode.h"
#include "runtime/attention/kept_attention.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/prompt_attention.h"

namespace kvc {
namespace {

// True if tokens have left what the layer stores. Rows are then not in the order of positions, keys of codes post-RoPE.
bool has_left(const KvCache& cache, int layer) {
  return !cache.policy().is_full() && cache.kept_layer(layer).rows.has_left();
}

// Rows that hold the positions and slots of what a fused layer reads.
const KeptRows& first_rows(const KvCache& cache, const FusedLayer& layer) {
  return cache.kept_layer(cache.sharing(layer.layer).storage.front()).rows;
}

at::Tensor positions_of(const KvCache& cache, const FusedLayer& layer, const RowRun& run) {
  return has_left(cache, layer.key_sources[0])
             ? first_rows(cache, layer).positions().select(1, 0).narrow(0, run.first, run.count)
             : at::arange(run.first, run.first + run.count, at::kLong);
}

// Rows of a store in the order of rows; read_codes(first, rows) takes those of codes as they are [n, ...].
template <typename ReadCodes>
at::Tensor in_order(const RowStore& exact, const std::optional<RowStore>& codes,
                    const TokenOrder& order, const RowRun& run, const ReadCodes& read_codes) {
  std::vector<at::Tensor> parts;
  const auto add = [&](std::int64_t begin, std::int64_t end, const auto& read) {
    const std::int64_t first = std::max(run.first, begin),
                       last = std::min(run.first + run.count, end);
    if (first < last) {
      parts.push_back(read(first, last - first));
    }
  };
  const std::int64_t after = order.sinks + order.codes;
  add(0, order.sinks,
      [&](std::int64_t first, std::int64_t count) { return exact.rows(first, count, at::kFloat); });
  add(order.sinks, after, [&](std::int64_t first, std::int64_t count) {
    return read_codes(first, codes->rows(first - order.sinks, count, at::kFloat));
  });
  add(after, order.num_tokens(), [&](std::int64_t first, std::int64_t count) {
    return exact.rows(first - order.codes, count, at::kFloat);
  });
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

const KeyValueStore& store_of(const KvCache& cache, int layer) {
  return cache.policy().is_full() ? cache.plain_layer(layer) : cache.kept_layer(layer).rows.store();
}

TokenOrder order_of(const KvCache& cache, int layer) {
  const KeyValueStore& store = store_of(cache, layer);
  return {store.num_exact(), store.num_codes(),
          cache.policy().is_full() ? cache.plan().compression.sink_tokens
                                   : cache.kept_layer(layer).rows.rows_before_codes()};
}

// Post-RoPE keys of a layer that stores them.
at::Tensor stored_key(const Decoder& decoder, int layer, const KvCache& cache, const RowRun& run) {
  const KeyValueStore& store = store_of(cache, layer);
  const bool are_rotated = decoder.config().depends_on_length(layer) || has_left(cache, layer);
  return in_order(store.key, store.key_codes, order_of(cache, layer), run,
                  [&](std::int64_t first, const at::Tensor& codes) {
                    return are_rotated ? codes
                                       : decoder.rope().rotate(
                                             layer, codes,
                                             at::arange(first, first + codes.size(0), at::kLong));
                  });
}

at::Tensor stored_value(int layer, const KvCache& cache, const RowRun& run) {
  const KeyValueStore& store = store_of(cache, layer);
  return in_order(store.value, store.value_codes, order_of(cache, layer), run,
                  [](std::int64_t, const at::Tensor& codes) { return codes; });
}

// Matrices mix channels that RoPE turns by different angles: they take keys before it.
at::Tensor fused_key(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                     const RowRun& run) {
  const bool before_rope = factors.weights.key.form == FusionForm::kFull;
  const at::Tensor positions = before_rope ? positions_of(cache, factors.layer, run) : at::Tensor();
  std::vector<at::Tensor> sources;
  for (const int source : factors.layer.key_sources) {
    const at::Tensor key = stored_key(decoder, source, cache, run);
    sources.push_back(before_rope ? decoder.rope().unrotate(source, key, positions) : key);
  }
  const at::Tensor key = fuse(factors.weights.key, factors.pairs, sources);
  return before_rope ? decoder.rope().rotate(factors.layer.layer, key, positions) : key;
}

at::Tensor fused_value(const FusedFactors& factors, const KvCache& cache, const RowRun& run) {
  std::vector<at::Tensor> sources;
  for (const int source : factors.layer.value_sources) {
    sources.push_back(stored_value(source, cache, run));
  }
  return fuse(factors.weights.value, factors.pairs, sources);
}

// All rows, made some at a time: what sources hold is read as float32, in several copies. Every piece of a prompt takes room
// for the rows that the sources hold of all of it, so that the memory of one serves the next.
template <typename Make>
at::Tensor in_parts(std::int64_t num_rows, std::int64_t num_stored, at::ScalarType type,
                    const Make& make) {
  at::Tensor rows;
  for (std::int64_t first = 0; first < num_rows; first += kChunkTokens) {
    const RowRun run{first, std::min(kChunkTokens, num_rows - first)};
    const at::Tensor part = make(run);
    if (!rows.defined()) {
      rows = at::empty({num_stored, part.size(1), part.size(2)}, part.options().dtype(type));
    }
    rows.narrow(0, run.first, run.count).copy_(part);
  }
  return rows.narrow(0, 0, num_rows);
}

std::int64_t num_stored(const KvCache& cache, const FusedLayer& layer) {
  return order_of(cache, layer.key_sources.front()).num_tokens();
}

// The last query through the kernels.
at::Tensor attend_folded(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                         const at::Tensor& query, std::int64_t num_tokens) {
  const FusedLayer& layer = factors.layer;
  const Fusion &key = factors.weights.key, &value = factors.weights.value;
  const AttentionRule rule = attention_rule(decoder.config(), layer.layer);
  const std::int64_t seen = std::min(rule.window.value_or(num_tokens), num_tokens);
  const std::int64_t num_kv_heads = decoder.config().num_kv_heads;
  const TokenOrder order = order_of(cache, layer.key_sources[0]).up_to(num_tokens);
  const CodedKeys codes = has_left(cache, layer.key_sources[0])
                              ? CodedKeys()
                              : CodedKeys(decoder, layer.layer, order.codes == 0 ? 1 : num_tokens);
  const auto ranges = [&](std::size_t source) {
    return plain_ranges(store_of(cache, layer.key_sources[source]),
                        store_of(cache, layer.value_sources[source]), order, codes.are_raw(), seen);
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

at::Tensor fused_keys(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                      std::int64_t num_rows, at::ScalarType type) {
  return in_parts(num_rows, num_stored(cache, factors.layer), type,
                  [&](const RowRun& run) { return fused_key(decoder, factors, cache, run); });
}

FusedRows fused_rows(const Decoder& decoder, const FusedFactors& factors, const KvCache& cache,
                     std::int64_t num_rows, at::ScalarType type) {
  return {fused_keys(decoder, factors, cache, num_rows, type),
          in_parts(num_rows, num_stored(cache, factors.layer), type,
                   [&](const RowRun& run) { return fused_value(factors, cache, run); })};
}

SlotRows fused_slots(const FusedFactors& factors, const KvCache& cache) {
  if (cache.policy().is_full() || first_rows(cache, factors.layer).residual().empty()) {
    return {};
  }
  std::vector<at::Tensor> keys, values;
  SlotRows slots;
  const auto read = [&](int layer) {
    return slot_rows(cache.kept_layer(layer).rows, cache.policy().alpha);
  };
  for (const int layer : factors.layer.key_sources) {
    slots = read(layer);
    keys.push_back(slots.key);
  }
  for (const int layer : factors.layer.value_sources) {
    values.push_back(read(layer).value);
  }
  return {fuse(factors.weights.key, factors.pairs, keys),
          fuse(factors.weights.value, factors.pairs, values), slots.bias};
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
  const std::int64_t last = positions[-1].item<std::int64_t>(), num_tokens = last + 1;
  const FusedLayer& layer = factors.layer;
  const bool left = has_left(cache, layer.key_sources[0]);
  // For a prompt, the layers that are read may hold tokens behind the queries': the last rows.
  const KeptRows* kept = left ? &first_rows(cache, layer) : nullptr;
  const std::int64_t num_rows =
      left ? kept->num_rows() - (kept->position(kept->num_rows() - 1, 0) - last) : num_tokens;
  if (query.size(0) == 1 && can_fold(factors) &&
      (!left || (kept->residual().empty() && !cache.policy().cache_positions))) {
    return attend_folded(decoder, factors, cache, query[0], num_rows).unsqueeze(0);
  }
  const AttentionRule rule = attention_rule(decoder.config(), layer.layer);
  const bool is_narrow = !left && can_attend_in_bfloat16(query, rule);
  const FusedRows rows =
      fused_rows(decoder, factors, cache, num_rows, is_narrow ? at::kBFloat16 : at::kFloat);
  if (!left) {
    return attend_prompt(query, rows.key, rows.value, rule);
  }
  return attend_kept(decoder, layer.layer, {rows.key, rows.value, fused_slots(factors, cache)},
                     cache.policy(), query, positions);
}

}  // namespace kvc
