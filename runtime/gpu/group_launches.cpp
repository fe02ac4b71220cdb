// Latent groups: pending tokens, unmerged ones, and latents of those that merged.
#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/gpu/layer_launches.h"

namespace kvc {
namespace {

// Latents of one form: where they lie, what rebuilds them, of which sequences how many.
struct LatentRows {
  const GpuRows& rows;
  const RankFactors& factors;
  const std::optional<GpuRows>& positions;  // none: a run from first_position on
  int first_position;
  const at::Tensor& num_rows;
  const std::int32_t* first_rows;   // or null
  const GpuBasis* basis = nullptr;  // of each sequence; null: the factors'
};

class GroupLaunches : public LayerLaunches {
 public:
  GroupLaunches(StepLaunches& launches, const std::shared_ptr<Segments>& segments)
      : launches_(launches), cache_(launches.cache), segments_(segments) {
    std::int64_t rank = 0;
    for (const LatentGroup& group : cache_.plan().groups) {
      rank = std::max(rank, group.rank);
    }
    const auto zeros = [&](std::int64_t width, at::ScalarType dtype) {
      return launches.zeros({launches.num_sequences, width}, dtype);
    };
    latent_ = zeros(rank, at::kFloat);
    weighted_ = zeros(rank, at::kFloat);
    score_ = zeros(1, at::kFloat);
    first_latent_ = zeros(rank, launches.model.dtype);
    last_latent_ = zeros(rank, launches.model.dtype);
  }

  // Latents may take the projections' place.
  bool makes_keys(int layer) const override { return place_of(layer).store.decides(); }

  void add_latents(int layer) override {
    const Place place = place_of(layer);
    const Linear latent_proj{place.factors.factors.latent_proj, {}};
    if (place.store.held_weighted) {
      return add_weighted(place, latent_proj);
    }
    if (!place.rows.unmerged_latent) {
      return;
    }
    FewRowsProduct product = launches_.product_of(latent_proj, launches_.memory.normed);
    product.output_float = launches_.pointer<float>(latent_);
    launches_.add_product(product);
    if (place.store.decides()) {
      append(latent_, *place.rows.held_latent, cache_.pending_slots(), false);
    } else {
      append(latent_, *place.rows.unmerged_latent, launches_.state.positions, false);
    }
  }

  void set_stores(int layer, AppendRows& append) const override {
    const Place place = place_of(layer);
    if (!place.store.decides()) {
      return;
    }
    append.rows = launches_.pointer<std::int32_t>(cache_.pending_slots());
    append.key = place.rows.pending_key->table();
    append.value = place.rows.pending_value->table();
    if (place.rows.key_rms) {
      append.key_rms = place.rows.key_rms->table();
    }
    const auto apart = [&](std::size_t segment, const at::Tensor& num_rows,
                           const std::optional<GpuRows>& positions) {
      append.apart[segment] = {.num_rows = launches_.pointer<std::int32_t>(num_rows),
                               .positions = positions ? positions->table() : DeviceRows{},
                               .first_rows = segments_->first_apart(segment)};
    };
    apart(0, place.store.num_unmerged(), place.store.unmerged_positions);
    apart(1, place.store.num_merged(), place.store.merged_positions);
    append.sinks = narrow_size(cache_.plan().compression.sink_tokens);
  }

  void add_attention(int layer, const DenseAttention& query, const DeviceRope& rope) override {
    const Place place = place_of(layer);
    const GpuGroup& store = place.store;
    const GpuGroupLayer& rows = place.rows;
    const int sinks = store.decides() ? narrow_size(cache_.plan().compression.sink_tokens) : 0;
    const std::int32_t *first_unmerged = segments_->first_apart(query, 0),
                       *first_merged = segments_->first_apart(query, 1);
    DenseAttention exact = query;
    std::vector<DevicePartials> sources;
    if (rows.pending_key) {
      exact.rows[0] = {.key = rows.pending_key->table(), .value = rows.pending_value->table()};
      sources.push_back(segments_->add_exact(exact, cache_.pending_rows()));
    }
    if (rows.unmerged_key && place.spec.basis == LatentBasis::kWeights) {
      exact.first_rows = first_unmerged;
      exact.rows[0] = {.key = rows.unmerged_key->table(), .value = rows.unmerged_value->table()};
      sources.push_back(segments_->add_others(exact, store.num_unmerged()));
    }
    if (rows.unmerged_latent) {
      const bool decides = store.decides();
      sources.push_back(add_rank(
          query, rope,
          {*rows.unmerged_latent, place.factors.layers[place.index], store.unmerged_positions,
           sinks, decides ? store.num_unmerged() : launches_.state.num_rows,
           decides ? first_unmerged : query.first_rows},
          0));
    }
    for (std::size_t basis = 0; basis < rows.bases.size(); ++basis) {
      const GpuGroup::BasisRange& range = store.basis_ranges()[basis];
      // Under a window there is one basis, from the first merged token on.
      const std::int32_t* first = query.first_rows != nullptr
                                      ? first_merged
                                      : launches_.pointer<std::int32_t>(range.first_rows);
      sources.push_back(
          add_rank(query, rope,
                   {*store.merged, place.factors.merged_layers[place.index], store.merged_positions,
                    sinks, range.num_rows, first, &rows.bases[basis]},
                   1 + basis));
    }
    if (store.merged && rows.bases.empty()) {
      sources.push_back(add_rank(query, rope,
                                 {*store.merged, place.factors.merged_layers[place.index],
                                  store.merged_positions, sinks, store.num_merged(), first_merged},
                                 1));
    }
    launches_.add_combination(sources);
  }

 private:
  // For a layer among its group's.
  struct Place {
    const LatentGroup& spec;
    const GpuGroup& store;
    const GpuGroupFactors& factors;
    std::size_t index;
    const GpuGroupLayer& rows;
  };
  Place place_of(int layer) const {
    const int group = cache_.plan().group_of(layer);
    const LatentGroup& spec = cache_.plan().groups[static_cast<std::size_t>(group)];
    const GpuGroup& store = cache_.group(group);
    const auto index = static_cast<std::size_t>(layer - spec.first_layer);
    return {spec, store, launches_.model.groups[static_cast<std::size_t>(group)], index,
            store.layers[index]};
  }

  // weighted = sum_l w_l A x_l, layer by layer; the score is the cosine of the first layer's and the last one's.
  void add_weighted(const Place& place, const Linear& latent_proj) {
    const bool is_first = place.index == 0,
               is_last = place.index + 1 == static_cast<std::size_t>(place.spec.num_layers);
    FewRowsProduct product = launches_.product_of(latent_proj, launches_.memory.normed);
    if (is_first || is_last) {
      product.output = (is_first ? first_latent_ : last_latent_).data_ptr();
      launches_.add_product(product);
      product.output = nullptr;
    }
    product.scale = static_cast<float>(place.spec.merge_weights[place.index]);
    (is_first ? product.output_float : product.residual) = launches_.pointer<float>(weighted_);
    launches_.add_product(product);
    if (!is_last) {
      return;
    }
    launches_.add(RowCosines{.a = first_latent_.data_ptr(),
                             .b = (is_first ? first_latent_ : last_latent_).data_ptr(),
                             .num_rows = narrow_size(launches_.num_sequences),
                             .width = product.out,
                             .element = launches_.element,
                             .cosines = launches_.pointer<float>(score_)});
    append(weighted_, *place.store.held_weighted, cache_.pending_slots(), false);
    append(score_, *place.store.held_score, cache_.pending_slots(), true);
  }

  void append(const at::Tensor& from, const GpuRows& to, const at::Tensor& rows, bool are_floats) {
    launches_.add(AppendLatents{.from = launches_.pointer<float>(from),
                                .num_sequences = narrow_size(launches_.num_sequences),
                                .rows = launches_.pointer<std::int32_t>(rows),
                                .to = to.table(),
                                .are_floats = are_floats});
  }

  DevicePartials add_rank(const DenseAttention& query, const DeviceRope& rope,
                          const LatentRows& latents, std::size_t segment) {
    RankAttention attention{.query = query.query, .element = query.element};
    attention.latents = latents.rows.table();
    attention.key_rank = narrow_size(latents.factors.key_rank());
    attention.value_rank = narrow_size(latents.factors.value_rank());
    attention.value_column = narrow_size(latents.rows.width()) - attention.value_rank;
    attention.keys = latents.factors.keys();
    attention.stored = latents.factors.stored();
    attention.num_rows = launches_.pointer<std::int32_t>(latents.num_rows);
    attention.first_rows = latents.first_rows;
    if (latents.positions) {
      attention.paged_positions = latents.positions->table();
    }
    attention.first_position = latents.first_position;
    attention.sums_width = narrow_size(whole_ranks(latents.factors.value_rank()));
    ProjectValues values = latents.factors.values();
    if (latents.basis != nullptr) {
      const DeviceRows keys = latents.basis->key.table(), rows = latents.basis->value.table();
      attention.keys.projections = keys.blocks;
      attention.keys.projections_stride = keys.max_blocks;
      values.projections = rows.blocks;
      values.projections_stride = rows.max_blocks;
    }
    return segments_->add_sums(attention, query, rope, values, segment);
  }

  StepLaunches& launches_;
  const GpuCache& cache_;
  std::shared_ptr<Segments> segments_;
  // For the new tokens, [num_sequences, ..]; float32, and in 16 bits.
  at::Tensor latent_, weighted_, score_, first_latent_, last_latent_;
};

}  // namespace

std::shared_ptr<LayerLaunches> group_launches(StepLaunches& launches,
                                              const std::shared_ptr<Segments>& segments) {
  return std::make_shared<GroupLaunches>(launches, segments);
}

}  // namespace kvc
