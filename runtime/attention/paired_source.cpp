#include <algorithm>
#include <vector>

#include "core/error.h"
#include "runtime/attention/decode.h"
#include "runtime/attention/layer_source.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/compression/pair_merging.h"
#include "runtime/store/element_type.h"
#include "runtime/store/row_store.h"

namespace kvc {
namespace {

// What one layer of a pair attends to.
struct PairLayer {
  const PairStore& pair;
  std::size_t index;
  std::int64_t num_kv_heads;
  AttentionRule rule;

  std::int64_t num_merged() const { return pair.key.num_rows(); }
  const KeyValueStore& exact() const { return pair.exact[index]; }
  at::Tensor exact_positions() const { return pair.exact_positions(index); }
  at::Tensor restored(const PairedRows& rows, std::int64_t first, std::int64_t count,
                      at::ScalarType dtype) const {
    return restored_rows(rows, static_cast<std::int64_t>(index), first, count, dtype);
  }
};

at::Tensor attend_whole(const PairLayer& layer, const at::Tensor& query,
                        const at::Tensor& positions) {
  const std::int64_t merged = layer.num_merged();
  const at::ScalarType dtype = query.scalar_type();
  std::vector<Segment> segments;
  if (merged > 0) {
    segments.push_back(segment_of(layer.restored(layer.pair.key, 0, merged, dtype),
                                  layer.restored(layer.pair.value, 0, merged, dtype),
                                  layer.pair.merged_positions.tensor()));
  }
  if (layer.exact().num_exact() > 0) {
    segments.push_back(segment_of(layer.exact().key.rows(dtype), layer.exact().value.rows(dtype),
                                  layer.exact_positions()));
  }
  return attend_segments(query, positions, segments, layer.rule);
}

// One query [num_heads, head_dim]; merged rows are restored some at a time.
at::Tensor attend_in_parts(const PairLayer& layer, const at::Tensor& query, std::int64_t position) {
  const auto num_hidden = [&](const auto& positions) {
    return layer.rule.window
               ? positions().le(position - *layer.rule.window).sum().template item<std::int64_t>()
               : 0;
  };
  std::vector<PartialAttention> parts;
  const auto attend = [&](const KvSegment& rows, std::int64_t first, std::int64_t last) {
    parts.push_back(
        decode_attention_partly(query, layer.num_kv_heads, {{rows, first, last}}, layer.rule));
  };
  const KvElement element = element_of(query.scalar_type());
  for (std::int64_t first = num_hidden([&] { return layer.pair.merged_positions.tensor(); });
       first < layer.num_merged(); first += kChunkTokens) {
    const std::int64_t count = std::min(kChunkTokens, layer.num_merged() - first);
    const at::Tensor key = layer.restored(layer.pair.key, first, count, query.scalar_type());
    const at::Tensor value = layer.restored(layer.pair.value, first, count, query.scalar_type());
    const void* key_block = key.const_data_ptr();
    const void* value_block = value.const_data_ptr();
    attend({.key = {&key_block, count, count, element},
            .value = {&value_block, count, count, element}},
           0, count);
  }
  const std::int64_t first = num_hidden([&] { return layer.exact_positions(); });
  if (first < layer.exact().num_exact()) {
    attend({.key = layer.exact().key.table(), .value = layer.exact().value.table()}, first,
           layer.exact().num_exact());
  }
  return join(parts).to(query.scalar_type());
}

class PairedSource : public LayerSource {
 public:
  PairedSource(const SourceContext& context, int first_layer)
      : LayerSource(context, first_layer, 2) {}

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    cache.pair(layer).exact[index(layer)].append(tokens.key, tokens.raw.value);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    const ModelConfig& config = context().decoder.config();
    const PairLayer rows{cache.pair(layer), index(layer), config.num_kv_heads,
                         attention_rule(config, layer)};
    return query.size(0) == 1 && rows.num_merged() > kChunkTokens
               ? attend_in_parts(rows, query[0], positions.item<std::int64_t>()).unsqueeze(0)
               : attend_whole(rows, query, positions);
  }

  void prompt_read(int layer, PromptCompression& prompt) override {
    if (is_last(layer)) {
      KvCache& cache = prompt.cache();
      merge_pair(*context().plan.paired, cache.num_tokens(), cache.pair(layer));
    }
  }

 private:
  std::size_t index(int layer) const { return static_cast<std::size_t>(index_of(layer)); }
};

}  // namespace

std::unique_ptr<LayerSource> paired_source(const SourceContext& context, int layer) {
  const std::vector<int>& pairs = context.plan.paired->first_layers;
  const auto after = std::upper_bound(pairs.begin(), pairs.end(), layer);
  KVC_CHECK(after != pairs.begin() && layer <= *(after - 1) + 1, "layer {}: no pair covers it",
            layer);
  return std::make_unique<PairedSource>(context, *(after - 1));
}

}  // namespace kvc
