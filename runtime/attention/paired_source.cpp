#include <algorithm>
#include <vector>

#include "core/error.h"
#include "runtime/attention/layer_source.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/compression/pair_merging.h"

namespace kvc {
namespace {

class PairedSource : public LayerSource {
 public:
  PairedSource(const SourceContext& context, int first_layer)
      : LayerSource(context, first_layer, 2) {}

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    cache.pair(layer).exact[index(layer)].append(tokens.key, tokens.value);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    const PairStore& pair = cache.pair(layer);
    const KeyValueStore& exact = pair.exact[index(layer)];
    const at::ScalarType dtype = query.scalar_type();
    std::vector<Segment> segments;
    if (pair.merged_positions.size() > 0) {
      segments.push_back(segment_of(restored_rows(pair.key, index_of(layer), dtype),
                                    restored_rows(pair.value, index_of(layer), dtype),
                                    pair.merged_positions.tensor()));
    }
    if (exact.num_exact() > 0) {
      segments.push_back(segment_of(exact.key.rows(dtype), exact.value.rows(dtype),
                                    pair.exact_positions(index(layer))));
    }
    return attend_segments(query, positions, segments,
                           attention_rule(context().decoder.config(), layer));
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
