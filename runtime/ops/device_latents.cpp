#include "runtime/ops/device_latents.h"

#include "runtime/ops/device_sums.h"

namespace kvc {
namespace {

template <class T>
T* moved(T* first, std::int64_t count) {
  return first == nullptr ? nullptr : first + count;
}

}  // namespace

DeviceProgram DeviceLatentAttention::program(int multiprocessors, DeviceScratch& scratch) const {
  RankAttention sums = latents;
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
  take_sums(multiprocessors, 1, most_rows, true, scratch, sums);
  DeviceProgram program{sums};
  ProjectValues projected = values;
  projected.num_sequences = sums.num_sequences;
  projected.num_heads = sums.num_heads;
  projected.num_kv_heads = sums.num_kv_heads;
  projected.head_dim = sums.head_dim;
  all.sources[1] = add_values(sums.partials, sums.sums_width, projected, scratch, program);
  all.num_sources = 2;
  program.emplace_back(all);
  return program;
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
