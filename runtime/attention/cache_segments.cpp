#include "runtime/attention/cache_segments.h"
#include "runtime/compression/key_forms.h"

#include <algorithm>

#include "core/error.h"
#include "runtime/attention/kept_attention.h"
#include "runtime/attention/prompt_attention.h"
#include "runtime/compression/group_view.h"

namespace kvc {
namespace {

class SegmentBuilder {
 public:
  SegmentBuilder(const GroupView& group, int index, std::int64_t num_queries, std::int64_t length)
      : decoder_(group.decoder),
        layer_(group.layer(index)),
        weights_(decoder_.layer(layer_)),
        factors_(group.factors),
        num_queries_(num_queries),
        length_(length) {}

  // Rows of `expanded` are the keys and values of the first latents; null: there are none.
  void add_expanded(const at::Tensor& positions, const KeyValueStore* expanded,
                    std::vector<Segment>& segments) const {
    if (count(expanded) > 0) {
      segments.push_back(from_exact(*expanded, positions.narrow(0, 0, count(expanded))));
    }
  }

  // Only the latents without such rows.
  void add_latents(const RowStore& stored, const at::Tensor& positions, const MergedLatents& rows,
                   const KeyValueStore* expanded, std::vector<Segment>& segments) const {
    const std::int64_t first = std::max(rows.first, count(expanded));
    if (first < rows.last) {
      segments.push_back(
          from_latents(stored, first, positions.slice(0, first, rows.last), rows.layer));
    }
  }

  // Rows from `first` on, at `positions`.
  Segment from_latents(const RowStore& stored, std::int64_t first, const at::Tensor& positions,
                       const Reconstruction& layer) const {
    const ModelConfig& config = decoder_.config();
    const at::Tensor latent = stored.rows(first, positions.size(0), decoder_.dtype());
    const at::Tensor key = reconstruct_key(decoder_, weights_, factors_, layer, latent);
    Segment segment{
        .key = layer.is_principal ? decoder_.rope().rotate(layer_, key, positions, length_)
                                  : finish(key, positions),
        .positions = positions,
        .value = {},
        .latent = latent.narrow(1, latent.size(1) - factors_.value_rank, factors_.value_rank),
        .value_proj = layer.value,
        .value_bias = value_offset(weights_, layer)};
    // attend_text reads values, if there are many queries.
    if (!is_few(num_queries_) ||
        !prefers_rank_space(num_queries_, config.num_heads, config.head_dim, config.kv_dim(),
                            factors_.value_rank)) {
      const Linear rebuild_value{layer.value, value_offset(weights_, layer)};
      segment.value = rebuild_value(segment.latent).view_as(key);
    }
    return segment;
  }

  Segment from_exact(const KeyValueStore& rows, const at::Tensor& positions) const {
    const at::Tensor key = rows.key.rows(decoder_.dtype());
    return segment_of(is_raw() ? finish(key, positions) : key, rows.value.rows(decoder_.dtype()),
                      positions);
  }

  // Codes hold keys after their norm, but raw ones as they are.
  Segment from_codes(const KeyValueStore& rows, const at::Tensor& positions) const {
    const at::Tensor key = rows.key_codes->rows(decoder_.dtype());
    return segment_of(
        is_raw() ? finish(key, positions) : decoder_.rope().rotate(layer_, key, positions),
        rows.value_codes->rows(decoder_.dtype()), positions);
  }

 private:
  static std::int64_t count(const KeyValueStore* expanded) {
    return expanded == nullptr ? 0 : expanded->num_exact();
  }

  bool is_raw() const { return stores_raw_keys(decoder_.config(), layer_); }

  at::Tensor finish(const at::Tensor& key, const at::Tensor& positions) const {
    return finish_key(weights_, decoder_.rope(), layer_, key, positions, length_);
  }

  const Decoder& decoder_;
  int layer_;
  const LayerWeights& weights_;
  const GroupFactors& factors_;
  std::int64_t num_queries_, length_;
};

// Sinks and then the last tokens of the sequence.
at::Tensor pending_positions(std::int64_t pending, std::int64_t num_tokens,
                             std::int64_t sink_tokens) {
  const std::int64_t sinks = std::min({pending, num_tokens, sink_tokens});
  return at::cat({at::arange(sinks, at::kLong),
                  at::arange(num_tokens - (pending - sinks), num_tokens, at::kLong)});
}

void add_plain(const SegmentBuilder& builder, const LatentStore& store, int index,
               std::vector<Segment>& segments) {
  const at::Tensor positions = store.unmerged_positions().tensor();
  const KeyValueStore& rows = store.unmerged(index);
  const std::int64_t codes = rows.num_codes();
  if (codes > 0) {
    segments.push_back(builder.from_codes(rows, positions.narrow(0, 0, codes)));
  }
  if (rows.num_exact() > 0) {
    segments.push_back(builder.from_exact(rows, positions.narrow(0, codes, rows.num_exact())));
  }
}

}  // namespace

Segment slot_segment(const GroupView& group, int index, double alpha, std::int64_t num_tokens) {
  const ResidualSlots& slots = group.store.slots();
  KVC_CHECK(!slots.empty(), "KV cache: no token was merged into residual slots");
  const auto numbers = [&](const float* first, std::int64_t width) {
    return at::from_blob(const_cast<float*>(first), {slots.num_slots(), width}, at::kFloat);
  };
  const at::Tensor positions = numbers(slots.value(), 1).squeeze(1).round().to(at::kLong);
  const Decoder& decoder = group.decoder;
  const int layer = group.layer(index);
  const LayerWeights& weights = decoder.layer(layer);
  const auto& layers =
      group.factors.merged_layers.empty() ? group.factors.layers : group.factors.merged_layers;
  const Reconstruction& rebuild = layers[static_cast<std::size_t>(index)];
  const KeyValue rebuilt = reconstruct(decoder, weights, group.factors, rebuild,
                                       numbers(slots.key(), slots.key_width()).to(decoder.dtype()));
  const at::Tensor key =
      rebuild.is_principal
          ? decoder.rope().rotate(layer, rebuilt.key, positions, num_tokens)
          : finish_key(weights, decoder.rope(), layer, rebuilt.key, positions, num_tokens);
  Segment segment = segment_of(key, rebuilt.value, at::zeros_like(positions));
  segment.score_bias =
      residual_bias(slots, 1, alpha).expand({-1, decoder.config().num_kv_heads}).contiguous();
  return segment;
}

std::vector<Segment> cache_segments(const GroupView& group, int index, std::int64_t num_tokens,
                                    std::int64_t num_queries) {
  const LatentStore& store = group.store;
  const SegmentBuilder builder(group, index, num_queries, num_tokens);
  std::vector<Segment> segments;
  const auto add_latents = [&](const RowStore& latents, const PositionList& positions,
                               const std::vector<MergedLatents>& parts,
                               const KeyValueStore* expanded) {
    const at::Tensor all = positions.tensor();
    builder.add_expanded(all, expanded, segments);
    for (const MergedLatents& rows : parts) {
      builder.add_latents(latents, all, rows, expanded, segments);
    }
  };
  const auto at_index = static_cast<std::size_t>(index);
  const std::optional<Expansion>& expansion = store.expansion();
  if (store.merged_positions().size() > 0) {
    add_latents(store.merged(), store.merged_positions(),
                merged_latents(group.factors, store, index, group.decoder.dtype()),
                expansion ? &expansion->merged[at_index] : nullptr);
  }
  if (store.unmerged_positions().size() > 0 && store.keeps_latents()) {  // one per layer
    const RowStore& latents = store.unmerged_latent(index);
    add_latents(latents, store.unmerged_positions(),
                {{0, latents.num_rows(), group.factors.layers[at_index]}},
                expansion ? &expansion->unmerged[at_index] : nullptr);
  } else if (store.unmerged_positions().size() > 0) {
    add_plain(builder, store, index, segments);
  }
  const std::int64_t pending = store.pending(index).num_exact();
  if (pending > 0) {
    // A group's first layer has read a whole text before the others get its first piece.
    segments.push_back(builder.from_exact(
        store.pending(index),
        store.holds_positions()
            ? store.pending_positions().tensor().narrow(0, 0, pending)
            : pending_positions(pending, num_tokens, group.plan.compression.sink_tokens)));
  }
  return segments;
}

}  // namespace kvc
