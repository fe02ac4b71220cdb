#include "runtime/plain_attention.h"

#include <algorithm>
#include <vector>

#include "runtime/decode.h"
#include "runtime/segment_attention.h"

namespace kvc {
namespace {

Segment segment_of(const at::Tensor& key, const at::Tensor& value, const at::Tensor& positions) {
  return {.key = key,
          .positions = positions,
          .value = value,
          .latent = {},
          .value_proj = {},
          .value_bias = {}};
}

}  // namespace

PlainOrder::PlainOrder(const KeyValueStore& store, std::int64_t sink_tokens)
    : sinks(std::min(store.num_exact(), sink_tokens)),
      codes(store.num_codes()),
      last(store.num_exact() - sinks) {}

at::Tensor PlainOrder::code_positions() const {
  return at::arange(sinks, sinks + codes, at::kLong);
}

at::Tensor PlainOrder::exact_positions() const {
  return at::cat(
      {at::arange(sinks, at::kLong), at::arange(sinks + codes, num_tokens(), at::kLong)});
}

at::Tensor attend_plain(const Decoder& decoder, int layer, const KeyValueStore& store,
                        std::int64_t sink_tokens, const at::Tensor& query,
                        const at::Tensor& positions) {
  const AttentionRule rule = attention_rule(decoder.config(), layer);
  const PlainOrder order(store, sink_tokens);
  const at::ScalarType dtype = query.scalar_type();
  if (query.size(0) == 1 && order.codes == 0) {
    const at::ScalarType stored = store.key.dtype();
    return decode_attention(query[0], store.key.rows(stored), store.value.rows(stored), rule)
        .unsqueeze(0);
  }
  std::vector<Segment> segments;
  if (order.codes > 0) {
    const at::Tensor code_positions = order.code_positions();
    at::Tensor key = store.key_codes->rows(dtype);
    if (!decoder.config().depends_on_length(layer)) {
      key = decoder.rope().rotate(layer, key, code_positions);
    }
    segments.push_back(segment_of(key, store.value_codes->rows(dtype), code_positions));
  }
  segments.push_back(
      segment_of(store.key.rows(dtype), store.value.rows(dtype), order.exact_positions()));
  return attend_segments(query, positions, segments, rule);
}

at::Tensor key_for_codes(const Decoder& decoder, int layer, const at::Tensor& key,
                         const at::Tensor& positions) {
  return decoder.config().depends_on_length(layer) ? key
                                                   : decoder.rope().unrotate(layer, key, positions);
}

}  // namespace kvc
