#include <algorithm>
#include <vector>

#include "core/error.h"
#include "runtime/attention/kept_group.h"
#include "runtime/attention/layer_source.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/compression/pair_merging.h"

namespace kvc {
namespace {

// Tokens of two paired layers, as a token policy sees them.
class KeptPairs : public TokensOfAllHeads {
 public:
  // index: of the layer that attended, in the pair
  KeptPairs(int index, PairStore& pair) : index_(index), pair_(pair) {}

  at::Tensor keys(std::int64_t) const override {
    return at::cat({restored_rows(pair_.key, index_, at::kFloat),
                    pair_.exact[static_cast<std::size_t>(index_)].key.rows(at::kFloat)});
  }
  at::Tensor scores() const override { return pair_.scores->tensor(at::kFloat); }
  void set_scores(const at::Tensor& scores) override {
    const std::int64_t merged = pair_.key.num_rows();
    pair_.scores->assign(scores.slice(0, 0, merged), scores.slice(0, merged));
  }

 protected:
  at::Tensor positions() const override { return pair_.positions->tensor(at::kLong); }
  void remove(const std::vector<std::int64_t>& rows, bool) override { pair_.remove(rows); }

 private:
  int index_;
  PairStore& pair_;
};

class PairedSource : public LayerSource {
 public:
  PairedSource(const SourceContext& context, int first_layer)
      : LayerSource(context, first_layer, 2) {}

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    PairStore& pair = cache.pair(layer);
    if (index_of(layer) == 0 && pair.positions) {
      pair.append_positions(tokens.positions);
    }
    pair.exact[index(layer)].append(tokens.key, tokens.value);
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    const PairStore& pair = cache.pair(layer);
    const KeyValueStore& exact = pair.exact[index(layer)];
    const at::ScalarType dtype = query.scalar_type();
    std::vector<Segment> segments;
    if (pair.key.num_rows() > 0) {
      segments.push_back(segment_of(restored_rows(pair.key, index_of(layer), dtype),
                                    restored_rows(pair.value, index_of(layer), dtype),
                                    pair.merged_positions()));
    }
    if (exact.num_exact() > 0) {
      segments.push_back(segment_of(exact.key.rows(dtype), exact.value.rows(dtype),
                                    pair.exact_positions(index(layer))));
    }
    return attend_segments(query, positions, segments,
                           attention_rule(context().decoder.config(), layer));
  }

  void attended(int layer, const NewTokens& tokens, const at::Tensor& query, std::int64_t end,
                KvCache& cache) override {
    if (!context().policy.is_full()) {
      KeptPairs pairs(index_of(layer), cache.pair(layer));
      finish_group(group_attended(layers(), layer, tokens, query, end), cache.kept_pair(layer),
                   pairs);
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
