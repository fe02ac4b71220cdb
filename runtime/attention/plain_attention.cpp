#include "runtime/attention/plain_attention.h"

#include <algorithm>
#include <vector>

#include "runtime/attention/prompt_attention.h"
#include "runtime/attention/segment_attention.h"

namespace kvc {
namespace {

// How many rows, the last ones, a query at `position` sees under a window.
std::int64_t rows_in_window(const KeyValueStore& store, const TokenOrder& order,
                            std::int64_t window, const at::Tensor& positions) {
  return store.positions
             ? (store.positions->rows(at::kInt) > positions - window).sum().item<std::int64_t>()
             : std::min(window, order.num_tokens());
}

// The query of the last token, through the kernel.
at::Tensor attend_one(const Decoder& decoder, int layer, const KeyValueStore& store,
                      const TokenOrder& order, const at::Tensor& query, const at::Tensor& positions,
                      const AttentionRule& rule) {
  const CodedKeys keys =
      order.codes == 0 ? CodedKeys() : CodedKeys(decoder, layer, order.num_tokens());
  const std::int64_t seen =
      rule.window ? rows_in_window(store, order, *rule.window, positions) : order.num_tokens();
  return decode_attention(query, decoder.config().num_kv_heads,
                          plain_ranges(store, store, order, keys.are_raw(), seen), rule,
                          keys.raw_keys);
}

}  // namespace

std::vector<RowRange> plain_ranges(const KeyValueStore& keys, const KeyValueStore& values,
                                   const TokenOrder& order, bool codes_are_raw, std::int64_t seen) {
  const std::int64_t first = order.num_tokens() - seen;  // position
  const KvSegment exact{.key = keys.key.table(), .value = values.value.table()};
  if (order.codes == 0) {
    return {{exact, first, order.num_tokens()}};
  }
  const KvSegment codes{.key = keys.key_codes->table(),
                        .value = values.value_codes->table(),
                        .first_position = order.sinks,
                        .raw_key = codes_are_raw};
  const std::int64_t after_codes = order.sinks + order.codes;
  return {{exact, std::min(first, order.sinks), order.sinks},
          {codes, std::clamp(first - order.sinks, std::int64_t{0}, order.codes), order.codes},
          {exact, order.sinks + std::max<std::int64_t>(0, first - after_codes),
           order.sinks + order.last}};
}

TokenOrder::TokenOrder(std::int64_t num_exact, std::int64_t num_codes, std::int64_t sink_tokens)
    : sinks(std::min(num_exact, sink_tokens)), codes(num_codes), last(num_exact - sinks) {}

TokenOrder TokenOrder::up_to(std::int64_t num_tokens) const {
  TokenOrder first = *this;
  first.sinks = std::min(sinks, num_tokens);
  first.last = std::max<std::int64_t>(0, num_tokens - first.sinks - codes);
  return first;
}

at::Tensor TokenOrder::code_positions() const {
  return at::arange(sinks, sinks + codes, at::kLong);
}

at::Tensor TokenOrder::exact_positions() const {
  return at::cat(
      {at::arange(sinks, at::kLong), at::arange(sinks + codes, num_tokens(), at::kLong)});
}

CodedKeys::CodedKeys(const Decoder& decoder, int layer, std::int64_t num_tokens) {
  if (decoder.config().depends_on_length(layer)) {
    return;
  }
  rope = decoder.rope().rows_of_positions(layer, num_tokens);
  if (are_raw()) {
    raw_keys.rope = {.cos = rope.cos.const_data_ptr<float>(),
                     .sin = rope.sin.const_data_ptr<float>(),
                     .num_pairs = rope.cos.size(1),
                     .interleaved = rope.interleaved};
  }
}

at::Tensor attend_plain(const Decoder& decoder, int layer, const KeyValueStore& store,
                        std::int64_t sink_tokens, const at::Tensor& query,
                        const at::Tensor& positions) {
  const AttentionRule rule = attention_rule(decoder.config(), layer);
  const TokenOrder order(store.num_exact(), store.num_codes(), sink_tokens);
  const at::ScalarType dtype = query.scalar_type();
  if (query.size(0) == 1) {
    return attend_one(decoder, layer, store, order, query, positions, rule).unsqueeze(0);
  }
  std::vector<Segment> segments;
  if (order.codes > 0) {
    const at::Tensor code_positions = order.code_positions();
    const at::Tensor key =
        key_of_codes(decoder, layer, store.key_codes->rows(dtype), code_positions);
    segments.push_back(segment_of(key, store.value_codes->rows(dtype), code_positions));
  }
  const at::Tensor exact_positions =
      store.positions ? store.positions->rows(at::kInt).to(at::kLong) : order.exact_positions();
  segments.push_back(segment_of(store.key.rows(dtype), store.value.rows(dtype), exact_positions));
  return attend_text(query, positions, segments, rule);
}

}  // namespace kvc
