// What ops over codes, latents and rows share: partial softmaxes, sums of coefficients in parts, and the values that they give.
#pragma once

#include "runtime/ops/device_program.h"

namespace kvc {

// Partial softmaxes of `rows` (sequences and query heads) in as many parts each, of outputs of `width` numbers.
inline DevicePartials take_partials(int num_parts, std::int64_t rows, std::int64_t width,
                                    DeviceScratch& scratch) {
  const std::int64_t all = rows * num_parts;
  return {scratch.take<float>(all), scratch.take<float>(all), scratch.take<float>(all * width),
          num_parts};
}

// Gives a RankAttention whose shape is set its partials and, with `tiles`, what its first launch hands to the second. value_blocks:
// of coefficients of a sequence.
inline void take_sums(int multiprocessors, int value_blocks, int most_rows, bool tiles,
                      DeviceScratch& scratch, RankAttention& sums) {
  constexpr int kRanksPerBlock = 256;  // of the sum_ranks kernel
  const int blocks =
      sums.num_sequences * value_blocks * ((sums.sums_width + kRanksPerBlock - 1) / kRanksPerBlock);
  const std::int64_t rows = static_cast<std::int64_t>(sums.num_sequences) * sums.num_heads;
  sums.partials = take_partials(attention_parts(multiprocessors, blocks, most_rows), rows,
                                sums.sums_width, scratch);
  if (tiles) {
    const std::int64_t tile_rows = rows * sums.max_tiles;
    sums.weights = scratch.take<std::uint16_t>(tile_rows * kScaledRows);
    sums.tile_max = scratch.take<float>(tile_rows);
    sums.tile_sum = scratch.take<float>(tile_rows);
  }
}

// Joins parts of sums, `width` coefficients each, and projects them: attention over all their tokens, as one source of
// CombinePartials. values: projection, scale and offset, ranks, and the shape.
inline DevicePartials add_values(const DevicePartials& parts, int width, ProjectValues values,
                                 DeviceScratch& scratch, DeviceProgram& program) {
  const std::int64_t rows = static_cast<std::int64_t>(values.num_sequences) * values.num_heads;
  const CombinePartials sums{.sources = {parts},
                             .num_sources = 1,
                             .num_sequences = values.num_sequences,
                             .num_heads = values.num_heads,
                             .width = width,
                             .output_float = scratch.take<float>(rows * width),
                             .log_sum = scratch.take<float>(rows)};
  program.emplace_back(sums);
  values.sums = sums.output_float;
  values.sums_width = width;
  values.output = scratch.take<float>(rows * values.head_dim);
  program.emplace_back(values);
  return {sums.log_sum, nullptr, values.output, 1};
}

}  // namespace kvc
