#include "runtime/gpu/group_launches.h"

namespace kvc {

GroupLaunches::GroupLaunches(const GpuModel& model, const GpuCache& cache, const StepState& state,
                             std::int64_t capacity, const StepExecutor& executor,
                             StepLaunches& launches)
    : model_(model),
      cache_(cache),
      state_(state),
      launches_(launches),
      num_sequences_(cache.num_sequences()),
      multiprocessors_(executor.multiprocessors()),
      shared_bytes_(executor.shared_bytes()),
      scratch_(make_group_scratch(model, cache, capacity, executor)) {
  for (const at::Tensor& tensor : scratch_.all) {
    launches_.keep(tensor);  // for as long as the program
  }
}

void GroupLaunches::append(const at::Tensor& from, const GpuRows& to, const at::Tensor& rows,
                           bool are_floats) {
  launches_.add(AppendLatents{.from = launches_.pointer<float>(from),
                              .num_sequences = narrow_size(num_sequences_),
                              .rows = launches_.pointer<std::int32_t>(rows),
                              .to = to.table(),
                              .are_floats = are_floats});
}

void GroupLaunches::add_latents(int layer) {
  const int group = cache_.plan().group_of(layer);
  const GpuGroup& store = cache_.group(group);
  const auto index = static_cast<std::size_t>(layer - spec_of(group).first_layer);
  const Linear latent_proj{model_.groups[static_cast<std::size_t>(group)].factors.latent_proj, {}};
  if (store.held_weighted) {
    return add_weighted(layer, group, latent_proj);
  }
  const GpuGroupLayer& rows = store.layers[index];
  if (!rows.unmerged_latent) {
    return;
  }
  FewRowsProduct product = launches_.product_of(latent_proj, launches_.memory.normed);
  product.output_float = launches_.pointer<float>(scratch_.latent);
  launches_.add_product(product);
  if (store.decides()) {
    append(scratch_.latent, *rows.held_latent, cache_.pending_slots(), false);
  } else {
    append(scratch_.latent, *rows.unmerged_latent, state_.positions, false);
  }
}

// weighted = sum_l w_l A x_l, layer by layer; the score is the cosine of the first layer's and the last one's.
void GroupLaunches::add_weighted(int layer, int group, const Linear& latent_proj) {
  const LatentGroup& spec = spec_of(group);
  const GpuGroup& store = cache_.group(group);
  const int index = layer - spec.first_layer, last = spec.num_layers - 1;
  FewRowsProduct product = launches_.product_of(latent_proj, launches_.memory.normed);
  if (index == 0 || index == last) {
    product.output = (index == 0 ? scratch_.first_latent : scratch_.last_latent).data_ptr();
    launches_.add_product(product);
    product.output = nullptr;
  }
  product.scale = static_cast<float>(spec.merge_weights[static_cast<std::size_t>(index)]);
  (index == 0 ? product.output_float : product.residual) =
      launches_.pointer<float>(scratch_.weighted);
  launches_.add_product(product);
  if (index < last) {
    return;
  }
  launches_.add(RowCosines{
      .a = scratch_.first_latent.data_ptr(),
      .b = last == 0 ? scratch_.first_latent.data_ptr() : scratch_.last_latent.data_ptr(),
      .num_rows = narrow_size(num_sequences_),
      .width = product.out,
      .element = device_element(model_.dtype),
      .cosines = launches_.pointer<float>(scratch_.score)});
  append(scratch_.weighted, *store.held_weighted, cache_.pending_slots(), false);
  append(scratch_.score, *store.held_score, cache_.pending_slots(), true);
}

void GroupLaunches::set_stores(int layer, AppendRows& append) const {
  const int group = cache_.plan().group_of(layer);
  const GpuGroup& store = cache_.group(group);
  if (!store.decides()) {
    append.num_kv_heads = 0;
    return;
  }
  const GpuGroupLayer& rows =
      store.layers[static_cast<std::size_t>(layer - spec_of(group).first_layer)];
  append.rows = launches_.pointer<std::int32_t>(cache_.pending_slots());
  append.key = rows.pending_key->table();
  append.value = rows.pending_value->table();
  if (rows.key_rms) {
    append.key_rms = rows.key_rms->table();
  }
  const auto apart = [&](std::size_t segment, const at::Tensor& num_rows,
                         const std::optional<GpuRows>& positions) {
    append.apart[segment] = {
        .num_rows = launches_.pointer<std::int32_t>(num_rows),
        .positions = positions ? positions->table() : DeviceRows{},
        .first_rows = launches_.pointer<std::int32_t>(scratch_.first_apart[segment])};
  };
  apart(0, store.num_unmerged(), store.unmerged_positions);
  apart(1, store.num_merged(), store.merged_positions);
  append.sinks = narrow_size(cache_.plan().policy.sink_tokens);
}

DevicePartials GroupLaunches::add_dense(DenseAttention attention, const DeviceRows& key,
                                        const DeviceRows& value, const at::Tensor& num_rows,
                                        std::size_t scratch) {
  attention.rows[0].key = key;
  attention.rows[0].value = value;
  return add_rows(attention, num_rows, scratch);
}

DevicePartials GroupLaunches::add_rows(DenseAttention attention, const at::Tensor& num_rows,
                                       std::size_t scratch) {
  attention.num_rows = launches_.pointer<std::int32_t>(num_rows);
  attention.partials = scratch_.dense[scratch].partials;
  launches_.add(attention);
  return attention.partials;
}

void GroupLaunches::add_attention(int layer, const DenseAttention& query, const DeviceRope& rope) {
  const KvPlan& plan = cache_.plan();
  const int group = plan.group_of(layer);
  const LatentGroup& spec = spec_of(group);
  const GpuGroup& store = cache_.group(group);
  const GpuGroupFactors& factors = model_.groups[static_cast<std::size_t>(group)];
  const auto index = static_cast<std::size_t>(layer - spec.first_layer);
  const GpuGroupLayer& rows = store.layers[index];
  const auto positions = [](const std::optional<GpuRows>& stored) {
    return stored ? &*stored : nullptr;
  };
  const int sinks = store.decides() ? narrow_size(plan.policy.sink_tokens) : 0;
  std::vector<DevicePartials> sources;
  if (rows.pending_key) {
    sources.push_back(add_dense(query, rows.pending_key->table(), rows.pending_value->table(),
                                cache_.pending_rows(), 0));
  }
  if (rows.unmerged_key && spec.basis == LatentBasis::kWeights) {
    DenseAttention unmerged = query;
    unmerged.first_rows = first_apart(query, 0);
    sources.push_back(add_dense(unmerged, rows.unmerged_key->table(), rows.unmerged_value->table(),
                                store.num_unmerged(), 1));
  }
  if (rows.unmerged_latent) {
    sources.push_back(
        add_rank(query, rope,
                 {*rows.unmerged_latent, factors.layers[index], positions(store.unmerged_positions),
                  sinks, store.decides() ? store.num_unmerged() : state_.num_rows,
                  store.decides() ? first_apart(query, 0) : query.first_rows},
                 0));
  }
  for (std::size_t basis = 0; basis < rows.bases.size(); ++basis) {
    const GpuGroup::BasisRange& range = store.basis_ranges()[basis];
    // Under a window there is one basis, from the first merged token on.
    const std::int32_t* first = query.first_rows != nullptr
                                    ? first_apart(query, 1)
                                    : launches_.pointer<std::int32_t>(range.first_rows);
    sources.push_back(
        add_rank(query, rope,
                 {*store.merged, factors.merged_layers[index], positions(store.merged_positions),
                  sinks, range.num_rows, first, &rows.bases[basis]},
                 1 + basis));
  }
  if (store.merged && rows.bases.empty()) {
    sources.push_back(
        add_rank(query, rope,
                 {*store.merged, factors.merged_layers[index], positions(store.merged_positions),
                  sinks, store.num_merged(), first_apart(query, 1)},
                 1));
  }
  launches_.add_combination(sources);
}

}  // namespace kvc
