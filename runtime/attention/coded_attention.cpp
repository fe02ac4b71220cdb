#include "runtime/attention/coded_attention.h"

#include <algorithm>
#include <vector>

#include "runtime/attention/decode.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/prompt_attention.h"
#include "runtime/attention/segment_attention.h"

namespace kvc {
namespace {

TokenOrder order_of(const CodedLayer& layer) {
  return {layer.exact().num_exact(), layer.coded.store.num_codes(),
          layer.coded.plan.compression.sink_tokens};
}

// The query of the last token, through the kernels.
at::Tensor attend_one(const CodedLayer& layer, const TokenOrder& order, const at::Tensor& query) {
  const ModelConfig& config = layer.coded.decoder.config();
  const AttentionRule rule = attention_rule(config, layer.layer());
  const KeyValueStore& rows = layer.exact();
  const std::int64_t tokens = order.num_tokens();
  const std::int64_t first = tokens - std::min(rule.window.value_or(tokens), tokens);
  const std::int64_t first_code = std::max<std::int64_t>(0, first - order.sinks);
  const KvSegment exact{.key = rows.key.table(), .value = rows.value.table()};
  const std::int64_t hidden = std::max<std::int64_t>(0, first_code - order.codes);
  const std::vector<RowRange> ranges{{exact, std::min(first, order.sinks), order.sinks},
                                     {exact, order.sinks + hidden, order.sinks + order.last}};
  std::vector<PartialAttention> parts;
  if (std::any_of(ranges.begin(), ranges.end(),
                  [](const RowRange& range) { return range.first < range.last; })) {
    parts.push_back(decode_attention_partly(query, config.num_kv_heads, ranges, rule));
  }
  if (first_code < order.codes) {
    parts.push_back(attend_codes_partly(layer, query, first_code));
  }
  return join(parts).to(query.scalar_type());
}

}  // namespace

std::vector<Segment> coded_segments(const CodedLayer& layer, at::ScalarType dtype,
                                    std::int64_t num_tokens) {
  const Decoder& decoder = layer.coded.decoder;
  const CodedStore& store = layer.coded.store;
  const KeyValueStore& exact = layer.exact();
  const TokenOrder order = order_of(layer);
  const auto rotate = [&](const at::Tensor& key, const at::Tensor& at_positions) {
    return decoder.rope().rotate(layer.layer(), key, at_positions, num_tokens);
  };
  std::vector<Segment> segments;
  if (order.codes > 0) {
    const DecodedTokens decoded = decode_tokens(layer.coded, layer.index, 0, order.codes);
    const at::Tensor positions = store.has_left
                                     ? store.positions().codes.rows(at::kInt).to(at::kLong)
                                     : order.code_positions();
    segments.push_back(
        segment_of(rotate(decoded.key.to(dtype), positions), decoded.value.to(dtype), positions));
  }
  if (exact.num_exact() == 0) {
    return segments;
  }
  // For a prompt that is read in pieces this layer may not have all yet.
  const at::Tensor positions =
      store.has_left ? store.positions().exact.rows(0, exact.num_exact(), at::kInt).to(at::kLong)
                     : order.exact_positions();
  const at::Tensor key = exact.key.rows(dtype);
  segments.push_back(
      segment_of(stores_raw_keys(decoder.config(), layer.layer()) ? rotate(key, positions) : key,
                 exact.value.rows(dtype), positions));
  return segments;
}

at::Tensor attend_coded(const CodedLayer& layer, const at::Tensor& query,
                        const at::Tensor& positions) {
  const ModelConfig& config = layer.coded.decoder.config();
  const TokenOrder order = order_of(layer);
  if (query.size(0) == 1 && !stores_raw_keys(config, layer.layer())) {
    return attend_one(layer, order, query[0]).unsqueeze(0);
  }
  const std::int64_t num_tokens =
      layer.coded.store.has_left ? positions[-1].item<std::int64_t>() + 1 : order.num_tokens();
  return attend_text(query, positions, coded_segments(layer, query.scalar_type(), num_tokens),
                     attention_rule(config, layer.layer()));
}

}  // namespace kvc
