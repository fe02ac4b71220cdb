#include "runtime/attention/latent_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/attention/cache_segments.h"
#include "runtime/attention/decode.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/segment_attention.h"

namespace kvc {
namespace {

// Are there latents without keys and values beside them?
bool has_latents(const LatentStore& store) {
  return (store.merged_positions().size() > 0 ||
          (store.keeps_latents() && store.unmerged_positions().size() > 0)) &&
         !store.is_expanded();
}

// Can one query read all rows where they lie? Not where they must be turned by angles that change; and the
// tensors that stand for latents know of no window.
bool reads_in_place(const Decoder& decoder, int layer, const LatentStore& store) {
  return !stores_raw_keys(decoder.config(), layer) &&
         !(attention_rule(decoder.config(), layer).window && has_latents(store));
}

// Rows that the query at the end of num_tokens sees through the window.
class VisibleRows {
 public:
  VisibleRows(std::int64_t num_tokens, const AttentionRule& rule)
      : first_(num_tokens - std::min(rule.window.value_or(num_tokens), num_tokens)) {}

  // Rows at ascending positions: codes, whose positions are `code_positions`, and then exact ones.
  void add(const KeyValueStore& rows, const PositionList& positions,
           const at::Tensor& code_positions = {}, bool are_raw = false) {
    const std::int64_t hidden = first_ == 0 ? 0 : positions.count_before(first_);
    const std::int64_t codes = rows.num_codes();
    if (hidden < codes) {
      ranges_.push_back({{.key = rows.key_codes->table(),
                          .value = rows.value_codes->table(),
                          .positions = code_positions.const_data_ptr<std::int32_t>(),
                          .raw_key = are_raw},
                         hidden,
                         codes});
    }
    add(rows, 0, rows.num_exact(), hidden - codes);
  }
  // Rows of which the first are at positions from 0 on, the others at the end of the sequence.
  void add_pending(const KeyValueStore& rows, std::int64_t sinks, std::int64_t num_tokens) {
    const std::int64_t count = rows.num_exact(), leading = std::min(sinks, count);
    const std::int64_t gap = num_tokens - count;  // tokens that are no longer among them
    add(rows, 0, leading, first_);
    add(rows, leading, count, std::max(leading, first_ - gap));
  }
  const std::vector<RowRange>& ranges() const { return ranges_; }

 private:
  void add(const KeyValueStore& rows, std::int64_t begin, std::int64_t end, std::int64_t first) {
    if (std::max(begin, first) < end) {
      ranges_.push_back(
          {{.key = rows.key.table(), .value = rows.value.table()}, std::max(begin, first), end});
    }
  }

  std::int64_t first_;  // position
  std::vector<RowRange> ranges_;
};

// Latents through tensors, everything else through the kernel.
at::Tensor attend_one(const Decoder& decoder, const GroupLayer& layer, const LatentStore& store,
                      const at::Tensor& query, std::int64_t num_tokens) {
  const AttentionRule rule = attention_rule(decoder.config(), layer.layer());
  const auto index = static_cast<std::size_t>(layer.index);
  const CodedKeys keys(decoder, layer.layer(), num_tokens);
  at::Tensor code_positions;
  VisibleRows rows(num_tokens, rule);
  if (const std::optional<Expansion>& expansion = store.expansion()) {
    rows.add(expansion->merged[index], store.merged_positions());
    if (store.keeps_latents()) {
      rows.add(expansion->unmerged[index], store.unmerged_positions());
    }
  }
  if (!store.keeps_latents()) {
    if (store.unmerged(layer.index).num_codes() > 0) {
      code_positions = store.unmerged_positions().tensor().to(at::kInt);
    }
    rows.add(store.unmerged(layer.index), store.unmerged_positions(), code_positions,
             keys.are_raw());
  }
  rows.add_pending(store.pending(layer.index), layer.plan.policy.sink_tokens, num_tokens);
  std::vector<PartialAttention> parts;
  if (!rows.ranges().empty()) {
    parts.push_back(decode_attention_partly(query, decoder.config().num_kv_heads, rows.ranges(),
                                            rule, keys.raw_keys));
  }
  const std::vector<Segment> latents = latent_segments(
      decoder, layer.plan, layer.group, layer.index, layer.factors, store, num_tokens, 1);
  if (!latents.empty()) {
    parts.push_back(attend_segments_partly(query, latents, rule));
  }
  return join(parts).to(query.scalar_type());
}

}  // namespace

at::Tensor attend_group(const Decoder& decoder, const GroupLayer& layer, const LatentStore& store,
                        const at::Tensor& query, const at::Tensor& positions) {
  const std::int64_t num_tokens = positions[positions.size(0) - 1].item<std::int64_t>() + 1;
  if (query.size(0) == 1 && reads_in_place(decoder, layer.layer(), store)) {
    return attend_one(decoder, layer, store, query[0], num_tokens).unsqueeze(0);
  }
  const std::vector<Segment> segments =
      cache_segments(decoder, layer.plan, layer.group, layer.index, layer.factors, store,
                     num_tokens, query.size(0));
  return attend_segments(query, positions, segments,
                         attention_rule(decoder.config(), layer.layer()));
}

}  // namespace kvc
