#include "runtime/attention/kept_attention.h"

#include <algorithm>
#include <cmath>

#include "runtime/attention/decode.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/kernels/query_quads.h"

namespace kvc {
namespace {

constexpr float kNothing =
    -1e30f;  // a score whose exponential is 0, that can be subtracted from itself

// With positions by place in the cache, sinks are as far from the query as there are rows between: they are
// turned on by the number of tokens that left.
std::int64_t sink_shift(const TokenPolicy& policy, std::int64_t num_rows,
                        const at::Tensor& positions, std::int64_t num_queries) {
  return policy.cache_positions ? positions[0].item<std::int64_t>() + num_queries - num_rows : 0;
}

// Where scores of plain_ranges go, so that they lie in the order of rows: codes are between exact rows.
void place_scores(const TokenOrder& order, const QuadScores& scores,
                  std::vector<RowRange>& ranges) {
  ranges.front().scores = scores;
  if (order.codes > 0) {
    ranges[1].scores = {scores.numbers + order.sinks * kQuad, scores.stride};
    ranges[2].scores = {scores.numbers + order.codes * kQuad, scores.stride};
  }
}

void make_room(std::int64_t num_heads, const KeptRows& rows, RowScores& scores) {
  const std::int64_t num_rows = rows.num_rows();
  const auto size =
      static_cast<std::size_t>(QuadHeads(num_heads, rows.num_kv_heads()).num_scores(num_rows));
  scores.memory.reset(new float[size]);  // not written before the kernel does
  scores.scores = {scores.memory.get(), num_rows * kQuad};
}

at::Tensor attend_one(const Decoder& decoder, int layer, const KeptRows& rows,
                      const TokenPolicy& policy, const at::Tensor& query,
                      const at::Tensor& positions, RowScores* row_scores) {
  const std::int64_t num_kv_heads = decoder.config().num_kv_heads;
  const KeyValueStore& store = rows.store();
  const TokenOrder order(store.num_exact(), store.num_codes(), rows.rows_before_codes());
  CodedKeys angles;
  if (order.codes > 0 && !rows.has_left()) {
    angles = CodedKeys(decoder, layer, order.num_tokens());
  }
  RawKeys raw_keys = angles.raw_keys;
  std::vector<RowRange> ranges =
      plain_ranges(store, store, order, angles.are_raw(), order.num_tokens());
  std::vector<std::int32_t> sink_positions;
  if (const std::int64_t shift = sink_shift(policy, rows.num_rows(), positions, 1); shift > 0) {
    angles = CodedKeys(decoder, layer, shift + 1);
    raw_keys = angles.raw_keys;
    sink_positions.assign(static_cast<std::size_t>(policy.sink_tokens),
                          static_cast<std::int32_t>(shift));
    RowRange sinks = ranges.front();
    sinks.last = policy.sink_tokens;
    sinks.segment.positions = sink_positions.data();
    sinks.segment.raw_key = true;
    ranges.front().first = policy.sink_tokens;
    ranges.push_back(sinks);
  }
  if (row_scores != nullptr) {
    make_room(query.size(1), rows, *row_scores);
    place_scores(order, row_scores->scores, ranges);
  }
  at::Tensor bias;
  const ResidualSlots& slots = rows.residual();
  const void *slot_keys = nullptr, *slot_values = nullptr;
  if (!slots.empty()) {
    const std::int64_t count = slots.num_slots();
    slot_keys = slots.key();
    slot_values = slots.value();
    bias = residual_bias(slots, num_kv_heads, policy.alpha);
    ranges.push_back({{.key = {&slot_keys, count, count},
                       .value = {&slot_values, count, count},
                       .bias = bias.const_data_ptr<float>()},
                      0,
                      count});
  }
  return decode_attention(query, num_kv_heads, ranges, attention_rule(decoder.config(), layer),
                          raw_keys, row_scores == nullptr ? AfterAttention() : row_scores->after)
      .unsqueeze(0);
}

}  // namespace

at::Tensor residual_bias(const ResidualSlots& slots, std::int64_t num_kv_heads, double alpha) {
  const at::Tensor bias = at::empty({slots.num_slots(), num_kv_heads}, at::kFloat);
  const float* count = slots.count();
  std::transform(
      count, count + bias.numel(), bias.mutable_data_ptr<float>(), [alpha](float tokens) {
        return tokens > 0 ? static_cast<float>(alpha * std::log(static_cast<double>(tokens)))
                          : kNothing;
      });
  return bias;
}

SlotRows slot_rows(const KeptRows& rows, double alpha) {
  const ResidualSlots& slots = rows.residual();
  if (slots.empty()) {
    return {};
  }
  const auto tensor = [&](const float* numbers) {
    return at::from_blob(const_cast<float*>(numbers),
                         {slots.num_slots(), rows.num_kv_heads(), rows.head_dim()}, at::kFloat);
  };
  return {tensor(slots.key()), tensor(slots.value()),
          residual_bias(slots, rows.num_kv_heads(), alpha)};
}

at::Tensor attend_kept(const Decoder& decoder, int layer, const KeptRows& rows,
                       const TokenPolicy& policy, const at::Tensor& query,
                       const at::Tensor& positions, RowScores* row_scores) {
  if (!rows.has_left() && row_scores == nullptr) {
    return attend_plain(decoder, layer, rows.store(), rows.rows_before_codes(), query, positions);
  }
  if (query.size(0) == 1) {
    return attend_one(decoder, layer, rows, policy, query, positions, row_scores);
  }
  const KeptContent all = rows.content();
  const KeptTensors kept{all.key, all.value, slot_rows(rows, policy.alpha)};
  return attend_kept(decoder, layer, kept, policy, query, positions);
}

at::Tensor attend_kept(const Decoder& decoder, int layer, const KeptTensors& kept,
                       const TokenPolicy& policy, const at::Tensor& query,
                       const at::Tensor& positions) {
  const std::int64_t num_queries = query.size(0), num_rows = kept.key.size(0);
  const at::ScalarType dtype = query.scalar_type();
  // Every query sees all rows but those of the tokens behind its own.
  const at::Tensor seen_from = at::zeros({num_rows}, at::kLong);
  seen_from.slice(0, num_rows - num_queries).copy_(positions);
  at::Tensor key = kept.key;
  if (const std::int64_t shift = sink_shift(policy, num_rows, positions, num_queries); shift > 0) {
    const at::Tensor sinks = key.narrow(0, 0, policy.sink_tokens);
    key = at::cat({decoder.rope().rotate(layer, sinks, at::full({sinks.size(0)}, shift, at::kLong)),
                   key.slice(0, policy.sink_tokens)});
  }
  std::vector<Segment> segments{segment_of(key.to(dtype), kept.value.to(dtype), seen_from)};
  if (const SlotRows& slots = kept.slots; slots.key.defined()) {
    Segment merged = segment_of(slots.key, slots.value, at::zeros({slots.key.size(0)}, at::kLong));
    merged.score_bias = slots.bias;
    segments.push_back(merged);
  }
  return attend_segments(query, positions, segments, attention_rule(decoder.config(), layer));
}

}  // namespace kvc
