// Attention over latents and codes.
#include "runtime/gpu/group_launches.h"
#include "runtime/kernels/cuda/attention_one_pass.h"

namespace kvc {

DevicePartials GroupLaunches::add_rank(const DenseAttention& query, const DeviceRope& rope,
                                       const LatentRows& latents, std::size_t segment) {
  RankAttention attention{.query = query.query, .element = query.element};
  attention.latents = latents.rows.table();
  attention.key_rank = narrow_size(latents.factors.key_rank());
  attention.value_rank = narrow_size(latents.factors.value_rank());
  attention.value_column = narrow_size(latents.rows.width()) - attention.value_rank;
  attention.keys = latents.factors.keys();
  attention.stored = latents.factors.stored();
  if (latents.basis != nullptr) {
    const DeviceRows rows = latents.basis->key.table();
    attention.keys.projections = rows.blocks;
    attention.keys.projections_stride = rows.max_blocks;
  }
  attention.num_rows = launches_.pointer<std::int32_t>(latents.num_rows);
  attention.first_rows = latents.first_rows;
  if (latents.positions != nullptr) {
    attention.paged_positions = latents.positions->table();
  }
  attention.first_position = latents.first_position;
  attention.sums_width = narrow_size(whole_ranks(latents.factors.value_rank()));
  ProjectValues values = latents.factors.values();
  if (latents.basis != nullptr) {
    const DeviceRows rows = latents.basis->value.table();
    values.projections = rows.blocks;
    values.projections_stride = rows.max_blocks;
  }
  return add_sums(attention, query, rope, values, segment);
}

DevicePartials GroupLaunches::add_sums(RankAttention attention, const DenseAttention& query,
                                       const DeviceRope& rope, ProjectValues values,
                                       std::size_t segment) {
  attention.cos = rope.cos;
  attention.sin = rope.sin;
  attention.num_angles = rope.num_pairs;
  attention.num_sequences = query.num_sequences;
  attention.num_heads = query.num_heads;
  attention.num_kv_heads = query.num_kv_heads;
  attention.head_dim = query.head_dim;
  attention.scale = query.scale;
  attention.softcap = query.softcap;
  attention.max_tiles = narrow_size(scratch_.max_tiles);
  attention.partials = scratch_.rank.partials;
  choose_launches(attention);
  launches_.add(attention);
  add_segment(segment);
  CombinePartials sums;
  sums.sources[0] = attention.partials;
  sums.num_sources = 1;
  sums.num_sequences = query.num_sequences;
  sums.num_heads = query.num_heads;
  sums.width = attention.sums_width;
  sums.output_float = launches_.pointer<float>(scratch_.combined);
  sums.log_sum = launches_.pointer<float>(scratch_.log_sum[segment]);
  launches_.add(sums);
  values.sums = sums.output_float;
  values.sums_width = sums.width;
  values.num_sequences = query.num_sequences;
  values.num_heads = query.num_heads;
  values.output = launches_.pointer<float>(scratch_.projected[segment]);
  launches_.add(values);
  return {sums.log_sum, nullptr, values.output, 1};
}

// One launch where the kernel has a shape for it, which needs fewer parts and no scratch memory.
void GroupLaunches::choose_launches(RankAttention& attention) {
  attention.one_pass = one_pass_shape(attention, multiprocessors_, shared_bytes_);
  if (attention.one_pass.query_tiles > 0) {
    attention.partials.num_parts = one_pass_parts(attention, multiprocessors_);
    return;
  }
  if (!scratch_.weights.defined()) {
    add_tile_weights(model_, num_sequences_, scratch_);
    for (const at::Tensor& tensor : {scratch_.weights, scratch_.tile_max, scratch_.tile_sum}) {
      launches_.keep(tensor);
    }
  }
  attention.weights = scratch_.weights.data_ptr();
  attention.tile_max = launches_.pointer<float>(scratch_.tile_max);
  attention.tile_sum = launches_.pointer<float>(scratch_.tile_sum);
}

// Where the output of one segment more lies.
void GroupLaunches::add_segment(std::size_t segment) {
  while (scratch_.log_sum.size() <= segment) {
    scratch_.log_sum.push_back(launches_.keep(at::zeros_like(scratch_.log_sum.front())));
    scratch_.projected.push_back(launches_.keep(at::zeros_like(scratch_.projected.front())));
  }
}

}  // namespace kvc
