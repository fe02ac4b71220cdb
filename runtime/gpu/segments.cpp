#include "runtime/gpu/segments.h"

#include <algorithm>

#include "core/arithmetic.h"

namespace kvc {
namespace {

constexpr std::int64_t kRanksPerBlock = 256;  // of the sum_ranks kernel

}  // namespace

std::int64_t whole_ranks(std::int64_t rank) { return round_up(rank, kRankStep); }

std::int64_t most_rank_parts(int multiprocessors, std::int64_t num_sequences,
                             std::int64_t num_blocks, std::int64_t rank, std::int64_t tokens) {
  const std::int64_t blocks =
      num_sequences * num_blocks * ((rank + kRanksPerBlock - 1) / kRanksPerBlock);
  return attention_parts(multiprocessors, static_cast<int>(blocks), static_cast<int>(tokens));
}

Segments::Segments(StepLaunches& launches)
    : launches_(launches),
      others_(launches.partials(launches.memory.partials.num_parts, launches.config.head_dim)),
      max_tiles_((launches.capacity + kScaledRows - 1) / kScaledRows) {
  const std::int64_t sequences = launches.num_sequences;
  std::int64_t rank = 0, num_blocks = 1;
  for (const LatentGroup& group : launches.cache.plan().groups) {
    rank = std::max(rank, group.rank);
  }
  for (const GpuTiles& tiles : launches.cache.tiles()) {
    const RankCodes values = tiles.codes(CodedParts::kValues);
    rank = std::max(rank, coded_width(values.most_coefficients));
    num_blocks = std::max<std::int64_t>(num_blocks, values.num_blocks);
  }
  if (rank > 0) {
    rank = whole_ranks(rank);
    ranks_ = launches.partials(
        narrow_size(most_rank_parts(launches.executor.multiprocessors(), sequences, num_blocks,
                                    rank, max_tiles_ * kScaledRows)),
        rank);
    combined_ = launches.zeros({sequences, launches.config.num_heads, rank}, at::kFloat);
  }
  for (at::Tensor* first : {&first_apart_[0], &first_apart_[1], &very_first_}) {
    *first = launches.zeros({sequences}, at::kInt);
  }
}

std::int32_t* Segments::very_first() const { return launches_.pointer<std::int32_t>(very_first_); }

std::int32_t* Segments::first_apart(std::size_t segment) const {
  return launches_.pointer<std::int32_t>(first_apart_[segment]);
}

DevicePartials Segments::add_exact(DenseAttention attention, const at::Tensor& num_rows) {
  attention.num_rows = launches_.pointer<std::int32_t>(num_rows);
  launches_.add(attention);
  return attention.partials;
}

DevicePartials Segments::add_others(DenseAttention attention, const at::Tensor& num_rows) {
  attention.partials = others_;
  return add_exact(attention, num_rows);
}

DevicePartials Segments::add_first(DenseAttention attention) {
  attention.partials = others_;
  attention.partials.num_parts = 1;
  return add_exact(attention, very_first_);
}

template <class Attention>
void Segments::set_shape(const DenseAttention& query, Attention& attention) const {
  attention.num_sequences = query.num_sequences;
  attention.num_heads = query.num_heads;
  attention.num_kv_heads = query.num_kv_heads;
  attention.head_dim = query.head_dim;
  attention.scale = query.scale;
  attention.softcap = query.softcap;
  attention.max_tiles = narrow_size(max_tiles_);
  attention.partials = ranks_;
}

template <class Attention>
void Segments::set_scratch(Attention& attention) {
  if (!weights_.defined()) {
    const std::int64_t rows = launches_.num_sequences * max_tiles_ * launches_.config.num_heads;
    weights_ = launches_.zeros({rows, kScaledRows}, launches_.model.dtype);
    tile_max_ = launches_.zeros({rows}, at::kFloat);
    tile_sum_ = launches_.zeros({rows}, at::kFloat);
  }
  attention.weights = weights_.data_ptr();
  attention.tile_max = launches_.pointer<float>(tile_max_);
  attention.tile_sum = launches_.pointer<float>(tile_sum_);
}

DevicePartials Segments::add_sums(RankAttention attention, const DenseAttention& query,
                                  const DeviceRope& rope, ProjectValues values,
                                  std::size_t segment) {
  attention.cos = rope.cos;
  attention.sin = rope.sin;
  attention.num_angles = rope.num_pairs;
  set_shape(query, attention);
  set_scratch(attention);
  launches_.add(attention);
  return add_projection(attention.partials, attention.sums_width, query, values, segment);
}

DevicePartials Segments::add_codes(CodedAttention attention, const RankCodes& codes,
                                   const DenseAttention& query, const DeviceRope& rope,
                                   ProjectValues values, std::size_t segment) {
  attention.cos = rope.cos;
  attention.sin = rope.sin;
  attention.num_angles = rope.num_pairs;
  set_shape(query, attention);
  if (attention.values == nullptr) {
    set_scratch(attention);
  }
  launches_.add(attention);
  if (attention.values == nullptr) {
    RankAttention sums;
    sums.element = DeviceElement::kFloat16;
    sums.value_codes = codes;
    sums.num_rows = attention.num_rows;
    sums.first_rows = attention.first_rows;
    sums.sums_width = attention.sums_width;
    set_shape(query, sums);
    set_scratch(sums);
    launches_.add(sums);
  }
  return add_projection(attention.partials, attention.sums_width, query, values, segment);
}

DevicePartials Segments::add_projection(const DevicePartials& of_parts, int sums_width,
                                        const DenseAttention& query, ProjectValues values,
                                        std::size_t segment) {
  while (log_sum_.size() <= segment) {
    log_sum_.push_back(
        launches_.zeros({launches_.num_sequences, launches_.config.num_heads}, at::kFloat));
    projected_.push_back(launches_.zeros(
        {launches_.num_sequences, launches_.config.num_heads, launches_.config.head_dim},
        at::kFloat));
  }
  CombinePartials sums;
  sums.sources[0] = of_parts;
  sums.num_sources = 1;
  sums.num_sequences = query.num_sequences;
  sums.num_heads = query.num_heads;
  sums.width = sums_width;
  sums.output_float = launches_.pointer<float>(combined_);
  sums.log_sum = launches_.pointer<float>(log_sum_[segment]);
  launches_.add(sums);
  values.sums = sums.output_float;
  values.sums_width = sums.width;
  values.num_sequences = query.num_sequences;
  values.num_heads = query.num_heads;
  values.output = launches_.pointer<float>(projected_[segment]);
  launches_.add(values);
  return {sums.log_sum, nullptr, values.output, 1};
}

}  // namespace kvc
