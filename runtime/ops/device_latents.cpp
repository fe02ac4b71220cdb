#include "runtime/ops/device_latents.h"

namespace kvc {
namespace {

constexpr int kRanksPerBlock = 256;  // of the sum_ranks kernel

template <class T>
T* moved(T* first, std::int64_t count) {
  return first == nullptr ? nullptr : first + count;
}

}  // namespace

DeviceProgram DeviceLatentAttention::program(int multiprocessors, DeviceScratch& scratch) const {
  RankAttention sums = latents;
  const std::int64_t rows = static_cast<std::int64_t>(sums.num_sequences) * sums.num_heads;
  CombinePartials all{.sources = {exact},
                      .num_sources = 1,
                      .num_sequences = sums.num_sequences,
                      .num_heads = sums.num_heads,
                      .width = sums.head_dim,
                      .output = output,
                      .element = sums.element};
  if (most_rows == 0) {
    return {all};
  }
  sums.max_tiles = (most_rows + kScaledRows - 1) / kScaledRows;
  sums.sums_width = (sums.value_rank + 31) / 32 * 32;
  const int blocks = sums.num_sequences * ((sums.sums_width + kRanksPerBlock - 1) / kRanksPerBlock);
  DevicePartials& parts = sums.partials;
  parts.num_parts = attention_parts(multiprocessors, blocks, most_rows);
  parts.max = scratch.take<float>(rows * parts.num_parts);
  parts.sum = scratch.take<float>(rows * parts.num_parts);
  parts.output = scratch.take<float>(rows * parts.num_parts * sums.sums_width);
  sums.weights = scratch.take<std::uint16_t>(rows * sums.max_tiles * kScaledRows);
  sums.tile_max = scratch.take<float>(rows * sums.max_tiles);
  sums.tile_sum = scratch.take<float>(rows * sums.max_tiles);
  const CombinePartials combined{.sources = {parts},
                                 .num_sources = 1,
                                 .num_sequences = sums.num_sequences,
                                 .num_heads = sums.num_heads,
                                 .width = sums.sums_width,
                                 .output_float = scratch.take<float>(rows * sums.sums_width),
                                 .log_sum = scratch.take<float>(rows)};
  ProjectValues projected = values;
  projected.sums = combined.output_float;
  projected.sums_width = sums.sums_width;
  projected.num_sequences = sums.num_sequences;
  projected.num_heads = sums.num_heads;
  projected.num_kv_heads = sums.num_kv_heads;
  projected.head_dim = sums.head_dim;
  projected.output = scratch.take<float>(rows * sums.head_dim);
  all.sources[1] = {combined.log_sum, nullptr, projected.output, 1};
  all.num_sources = 2;
  return {sums, combined, projected, all};
}

DeviceLatentAttention DeviceLatentAttention::part(int first, int count) const {
  DeviceLatentAttention some = *this;
  const std::int64_t heads = static_cast<std::int64_t>(first) * latents.num_heads;
  const std::int64_t numbers = heads * latents.head_dim;
  some.latents.query = static_cast<const std::uint16_t*>(latents.query) + numbers;
  some.latents.latents.blocks += first * latents.latents.max_blocks;
  some.latents.num_rows += first;
  some.latents.first_rows = moved(latents.first_rows, first);
  some.latents.num_sequences = count;
  some.exact.max += heads;
  some.exact.output += numbers;
  some.output = static_cast<std::uint16_t*>(output) + numbers;
  return some;
}

}  // namespace kvc
