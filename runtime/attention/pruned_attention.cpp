#include "runtime/attention/pruned_attention.h"

#include <cmath>

#include "runtime/attention/decode.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/segment_attention.h"

namespace kvc {
namespace {

RowRange all_rows(const KeyValueStore& store) {
  return {{.key = store.key.table(), .value = store.value.table()}, 0, store.num_exact()};
}

// query [num_heads, head_dim]; channels [num_kv_heads, kept]
at::Tensor attend_one(const PrunedStore& store, const at::Tensor& query, const at::Tensor& channels,
                      AttentionRule rule) {
  const std::int64_t num_kv_heads = channels.size(0), head_dim = query.size(1);
  rule.scale = rule.scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)));
  const at::Tensor kept =
      query.gather(1, channels.repeat_interleave(query.size(0) / num_kv_heads, 0));
  return join({decode_attention_partly(kept, num_kv_heads, {all_rows(store.pruned())}, rule, {},
                                       head_dim),
               decode_attention_partly(query, num_kv_heads, {all_rows(store.whole())}, rule)})
      .to(query.scalar_type());
}

}  // namespace

at::Tensor attend_pruned(const Decoder& decoder, int layer, const PrunedStore& store,
                         const at::Tensor& query, const at::Tensor& positions) {
  const std::int64_t num_pruned = store.num_pruned();
  if (num_pruned == 0) {
    return attend_plain(decoder, layer, store.whole(), 0, query, positions);
  }
  const AttentionRule rule = attention_rule(decoder.config(), layer);
  const at::Tensor channels = store.channels();
  if (query.size(0) == 1) {
    return attend_one(store, query[0], channels, rule).unsqueeze(0);
  }
  const at::ScalarType dtype = query.scalar_type();
  const at::Tensor value = store.pruned().value.rows(dtype);
  const at::Tensor key = at::zeros_like(value).scatter_(
      2, channels.unsqueeze(0).expand({num_pruned, -1, -1}), store.pruned().key.rows(dtype));
  return attend_segments(query, positions,
                         {segment_of(key, value, at::arange(num_pruned, at::kLong)),
                          segment_of(store.whole().key.rows(dtype), store.whole().value.rows(dtype),
                                     at::arange(num_pruned, store.num_rows(), at::kLong))},
                         rule);
}

at::Tensor important_channels(const at::Tensor& query, const at::Tensor& key, std::int64_t kept) {
  const auto energy = [](const at::Tensor& x) { return x.to(at::kDouble).square().sum(0); };
  const at::Tensor of_query =
      energy(query).view({key.size(1), -1, key.size(2)}).sum(1);  // [num_kv_heads, head_dim]
  const at::Tensor score = of_query * energy(key);
  const at::Tensor order = score.argsort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  return std::get<0>(order.narrow(1, 0, kept).sort(1)).contiguous();
}

}  // namespace kvc
