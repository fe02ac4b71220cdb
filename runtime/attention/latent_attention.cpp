#include "runtime/attention/latent_attention.h"
#include "runtime/compression/key_forms.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/attention/cache_segments.h"
#include "runtime/attention/decode.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/prompt_attention.h"
#include "runtime/attention/rank_space.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/attention/selective_attention.h"
#include "runtime/compression/group_view.h"
#include "runtime/store/element_type.h"

namespace kvc {
namespace {

// Rows that the query at the end of num_tokens sees through the window.
class VisibleRows {
 public:
  VisibleRows(std::int64_t num_tokens, const AttentionRule& rule)
      : first_(num_tokens - std::min(rule.window.value_or(num_tokens), num_tokens)) {}

  // Latents at ascending positions, of which those before `rebuilt` have keys and values beside them.
  void add_latents(const RowStore& latents, const PositionList& positions, std::int64_t rebuilt,
                   const MergedLatents& rows) {
    const std::int64_t first = std::max({rows.first, rebuilt, num_hidden(positions)});
    if (first < rows.last) {
      latents_.push_back({latents, positions.tensor().to(at::kInt), rows.layer, first, rows.last});
    }
  }

  // Rows at ascending positions: codes, whose positions are `code_positions`, and then exact ones.
  void add(const KeyValueStore& rows, const PositionList& positions,
           const at::Tensor& code_positions = {}, bool are_raw = false) {
    const std::int64_t hidden = num_hidden(positions), codes = rows.num_codes();
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
  // Exact rows at whatever positions, of a layer without a window.
  void add_all(const KeyValueStore& rows) { add(rows, 0, rows.num_exact(), 0); }
  // Rows of which the first are at positions from 0 on, the others at the end of the sequence; the last `later`
  // ones are behind the query.
  void add_pending(const KeyValueStore& rows, std::int64_t sinks, std::int64_t num_tokens,
                   std::int64_t later) {
    const std::int64_t count = rows.num_exact() - later, leading = std::min(sinks, count);
    const std::int64_t gap = num_tokens - count;  // tokens that are no longer among them
    add(rows, 0, leading, first_);
    add(rows, leading, count, std::max(leading, first_ - gap));
  }
  const std::vector<RowRange>& ranges() const { return ranges_; }
  const std::vector<LatentRange>& latents() const { return latents_; }

 private:
  std::int64_t num_hidden(const PositionList& positions) const {
    return first_ == 0 ? 0 : positions.count_before(first_);
  }
  void add(const KeyValueStore& rows, std::int64_t begin, std::int64_t end, std::int64_t first) {
    if (std::max(begin, first) < end) {
      ranges_.push_back(
          {{.key = rows.key.table(), .value = rows.value.table()}, std::max(begin, first), end});
    }
  }

  std::int64_t first_;  // position
  std::vector<RowRange> ranges_;
  std::vector<LatentRange> latents_;
};

void add_latents(const GroupLayer& layer, VisibleRows& rows) {
  const LatentStore& store = layer.group.store;
  const GroupFactors& factors = layer.group.factors;
  const auto index = static_cast<std::size_t>(layer.index);
  const auto add = [&](const RowStore& latents, const PositionList& positions,
                       const std::vector<MergedLatents>& parts, const KeyValueStore* rebuilt) {
    for (const MergedLatents& part : parts) {
      rows.add_latents(latents, positions, rebuilt == nullptr ? 0 : rebuilt->num_exact(), part);
    }
    if (rebuilt != nullptr) {
      rows.add(*rebuilt, positions);
    }
  };
  const std::optional<Expansion>& expansion = store.expansion();
  if (store.merged_positions().size() > 0) {
    add(store.merged(), store.merged_positions(),
        merged_latents(factors, store, layer.index, layer.group.decoder.dtype()),
        expansion ? &expansion->merged[index] : nullptr);
  }
  if (store.keeps_latents()) {
    add(store.unmerged_latent(layer.index), store.unmerged_positions(),
        {{0, store.unmerged_positions().size(), factors.layers[index]}},
        expansion ? &expansion->unmerged[index] : nullptr);
  }
}

PartialAttention attend_slots(const GroupLayer& layer, const at::Tensor& query,
                              std::int64_t num_tokens) {
  const ModelConfig& config = layer.group.decoder.config();
  const Segment slots = slot_segment(layer.group, layer.index, layer.alpha, num_tokens);
  const at::Tensor key = slots.key.contiguous(), value = slots.value.contiguous();
  const void* key_block = key.const_data_ptr();
  const void* value_block = value.const_data_ptr();
  const std::int64_t count = key.size(0);
  const KvElement element = element_of(key.scalar_type());
  const KvSegment segment{.key = {&key_block, count, count, element},
                          .value = {&value_block, count, count, element},
                          .bias = slots.score_bias.const_data_ptr<float>()};
  return decode_attention_partly(query, config.num_kv_heads, {{segment, 0, count}},
                                 attention_rule(config, layer.layer()));
}

// One query, the last of num_tokens, behind which `later` ones are stored: all rows are read where they lie.
at::Tensor attend_one(const GroupLayer& layer, const at::Tensor& query, std::int64_t num_tokens,
                      std::int64_t later) {
  const Decoder& decoder = layer.group.decoder;
  const KvPlan& plan = layer.group.plan;
  const LatentStore& store = layer.group.store;
  const AttentionRule rule = attention_rule(decoder.config(), layer.layer());
  const bool has_codes = !store.keeps_latents() && store.unmerged(layer.index).num_codes() > 0;
  const CodedKeys keys = has_codes ? CodedKeys(decoder, layer.layer(), num_tokens) : CodedKeys();
  at::Tensor code_positions;
  VisibleRows rows(num_tokens, rule);
  std::vector<PartialAttention> parts;
  if (layer.selects && !rebuilds_all(*plan.selective, store.tokens())) {
    rows.add_all(store.chunks(layer.index).outliers);
    parts = attend_chosen(layer, query);
  } else {
    add_latents(layer, rows);
    if (layer.selects && layer.rebuilt != nullptr) {
      const std::int64_t all = store.tokens().merged * decoder.config().num_kv_heads;
      *layer.rebuilt += {.rebuilt = all, .latents = all};
    }
  }
  if (!store.keeps_latents()) {
    if (has_codes) {
      code_positions = store.unmerged_positions().tensor().to(at::kInt);
    }
    rows.add(store.unmerged(layer.index), store.unmerged_positions(), code_positions,
             keys.are_raw());
  }
  rows.add_pending(store.pending(layer.index), plan.compression.sink_tokens, num_tokens, later);
  if (parts.empty() && store.slots().empty() && rows.latents().empty()) {
    return decode_attention(query, decoder.config().num_kv_heads, rows.ranges(), rule,
                            keys.raw_keys);
  }
  if (!rows.ranges().empty()) {
    parts.push_back(decode_attention_partly(query, decoder.config().num_kv_heads, rows.ranges(),
                                            rule, keys.raw_keys));
  }
  if (!store.slots().empty()) {
    parts.push_back(attend_slots(layer, query, num_tokens));
  }
  for (const LatentRange& range : rows.latents()) {
    parts.push_back(
        rank_space_attention(decoder, layer.layer(), layer.group.factors, query, range));
  }
  return join(parts).to(query.scalar_type());
}

}  // namespace

at::Tensor attend_group(const GroupLayer& layer, const at::Tensor& query,
                        const at::Tensor& positions) {
  const ModelConfig& config = layer.group.decoder.config();
  const std::int64_t num_tokens =
      positions.const_data_ptr<std::int64_t>()[positions.size(0) - 1] + 1;
  if (layer.selects) {
    std::vector<at::Tensor> outputs;
    for (std::int64_t i = 0; i < query.size(0); ++i) {
      const std::int64_t later = query.size(0) - 1 - i;
      outputs.push_back(attend_one(layer, query[i], num_tokens - later, later));
    }
    return at::stack(outputs);
  }
  // Angles that change turn all keys anew, which tensors do.
  if (query.size(0) == 1 && !stores_raw_keys(config, layer.layer())) {
    return attend_one(layer, query[0], num_tokens, 0).unsqueeze(0);
  }
  std::vector<Segment> segments =
      cache_segments(layer.group, layer.index, num_tokens, query.size(0));
  if (!layer.group.store.slots().empty()) {
    segments.push_back(slot_segment(layer.group, layer.index, layer.alpha, num_tokens));
  }
  return attend_text(query, positions, segments, attention_rule(config, layer.layer()));
}

}  // namespace kvc
