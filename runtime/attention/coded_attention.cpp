#include "runtime/attention/coded_attention.h"

#include <algorithm>
#include <vector>

#include "runtime/attention/cache_segments.h"
#include "runtime/attention/decode.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/compression/coding.h"

namespace kvc {
namespace {

// The query of the last token, through the kernels.
at::Tensor attend_one(const Decoder& decoder, const CodedLayer& layer, const TokenOrder& order,
                      const at::Tensor& query) {
  const AttentionRule rule = attention_rule(decoder.config(), layer.layer());
  const KeyValueStore& rows = layer.store.exact[static_cast<std::size_t>(layer.index)];
  const std::int64_t tokens = order.num_tokens();
  const std::int64_t first = tokens - std::min(rule.window.value_or(tokens), tokens);
  const std::int64_t first_code = std::max<std::int64_t>(0, first - order.sinks);
  const KvSegment exact{.key = rows.key.table(), .value = rows.value.table()};
  const std::int64_t hidden = std::max<std::int64_t>(0, first_code - order.codes);
  const std::vector<RowRange> ranges{{exact, std::min(first, order.sinks), order.sinks},
                                     {exact, order.sinks + hidden, order.sinks + order.last}};
  std::vector<PartialAttention> parts{
      decode_attention_partly(query, decoder.config().num_kv_heads, ranges, rule)};
  if (first_code < order.codes) {
    parts.push_back(attend_codes_partly(decoder, layer, query, first_code));
  }
  return join(parts).to(query.scalar_type());
}

}  // namespace

at::Tensor attend_coded(const Decoder& decoder, const CodedLayer& layer, const at::Tensor& query,
                        const at::Tensor& positions) {
  const CodedStore& store = layer.store;
  const KeyValueStore& exact = store.exact[static_cast<std::size_t>(layer.index)];
  const TokenOrder order(exact.num_exact(), store.num_codes(), layer.plan.policy.sink_tokens);
  const bool raw = stores_raw_keys(decoder.config(), layer.layer());
  if (query.size(0) == 1 && !raw) {
    return attend_one(decoder, layer, order, query[0]).unsqueeze(0);
  }
  const at::ScalarType dtype = query.scalar_type();
  const auto rotate = [&](const at::Tensor& key, const at::Tensor& at_positions) {
    return decoder.rope().rotate(layer.layer(), key, at_positions, order.num_tokens());
  };
  std::vector<Segment> segments;
  if (order.codes > 0) {
    const DecodedTokens decoded =
        decode_tokens(layer.plan, layer.factors, store, layer.index, 0, order.codes);
    const at::Tensor code_positions = order.code_positions();
    segments.push_back(segment_of(rotate(decoded.key.to(dtype), code_positions),
                                  decoded.value.to(dtype), code_positions));
  }
  const at::Tensor exact_positions = order.exact_positions();
  const at::Tensor key = exact.key.rows(dtype);
  segments.push_back(segment_of(raw ? rotate(key, exact_positions) : key, exact.value.rows(dtype),
                                exact_positions));
  return attend_segments(query, positions, segments,
                         attention_rule(decoder.config(), layer.layer()));
}

}  // namespace kvc
