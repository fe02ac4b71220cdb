// Inputs of attention benchmarks over codes.
#include <algorithm>

#include "runtime/kernels/cuda/device_layout.h"
#include "tests/runtime/kernels/cuda/gpu_bench_inputs.h"

namespace kvc::testing {
namespace {

// Coefficients of heads' keys, or values: 4 bits on average.
std::vector<int> quarter_widths(int heads) {
  std::vector<int> widths{0, 0, 16, 32, 32, 32, 16, 0, 0};
  for (int& count : widths) {
    count *= heads;
  }
  return widths;
}

}  // namespace

RankCodes BenchInputs::tiles(const Batch& batch, int num_blocks, const std::vector<int>& widths,
                             std::int64_t offset) {
  TileLayout layout;
  std::copy(widths.begin() + 1, widths.end(), layout.coefficients + 1);
  DeviceTiles tiles = device_layout(layout);
  tiles.block_tiles = 4;
  tiles.max_blocks = (batch.num_tokens + 127) / 128;
  const std::int64_t block_bytes = (4 * std::int64_t{tiles.code_bytes} + 255) / 256 * 256;
  std::vector<DeviceTiles> all;
  for (int block = 0; block < num_blocks; ++block) {
    std::vector<const void*> table;
    for (std::int64_t i = 0; i < batch.num_sequences * tiles.max_blocks; ++i) {
      if (offset + block_bytes > kBytes) {
        offset = 0;
      }
      table.push_back(numbers_ + offset);
      offset += block_bytes;
    }
    tiles.blocks = memory_.upload(table);
    all.push_back(tiles);
  }
  return {memory_.upload(all), num_blocks, tiles.num_coefficients};
}

RankAttention BenchInputs::codes(const Batch& batch, int num_blocks, int coefficients) {
  RankAttention params = rank_params(batch, coefficients, coefficients);
  params.element = DeviceElement::kFloat16;
  // Half of the coefficients have 4 bits, a quarter 8 and 2 each: 4.5 on average.
  const int quarter = coefficients / 4, half = coefficients / 2;
  params.key_codes = params.value_codes =
      tiles(batch, num_blocks, {0, 0, coefficients - quarter - half, 0, half, 0, 0, 0, quarter}, 0);
  params.keys.pairs = pairs(0, kHeadDim / 2, kHeadDim / 2);
  return params;
}

RankAttention BenchInputs::codes_apart(const Batch& batch) {
  RankAttention params = rank_params(batch, kHeadDim, kHeadDim);
  params.element = DeviceElement::kFloat16;
  params.key_codes = tiles(batch, kKvHeads, quarter_widths(1), 0);
  params.value_codes = tiles(batch, kKvHeads, quarter_widths(1), kBytes / 2);
  params.keys.pairs = pairs(0, kHeadDim / 2, kHeadDim / 2);
  return params;
}

KeyRows BenchInputs::key_rows(int step) {
  std::vector<std::int32_t> channels, angles;
  int count = 0;
  for (int head = 0; head < kKvHeads; ++head) {
    std::vector<std::int32_t> pairs;
    for (int pair = 0; pair < kHeadDim / 2; pair += std::max(step, 1)) {
      pairs.insert(pairs.end(), step == 0 ? 2 : 1, pair);
    }
    angles.insert(angles.end(), pairs.begin(), pairs.end());
    channels.insert(channels.end(), pairs.begin(), pairs.end());
    for (const std::int32_t pair : pairs) {
      channels.push_back(pair + kHeadDim / 2);
    }
    count = static_cast<int>(pairs.size());
  }
  return {count, memory_.upload(channels),
          memory_.upload(std::vector<float>(channels.size(), 0.01f)), memory_.upload(angles)};
}

CodedAttention BenchInputs::met_codes(const Batch& batch, bool turned, bool whole) {
  CodedAttention params;
  const RankCodes keys = tiles(batch, kKvHeads, quarter_widths(1), 0);
  params.query = numbers_;
  params.keys = keys.tiles;
  params.most_key_bytes = params.most_value_bytes = 32 * kHeadDim / 2;
  if (!whole) {
    params.values = tiles(batch, kKvHeads, quarter_widths(1), kBytes / 2).tiles;
  }
  params.turned = turned;
  params.codes = key_rows(0);
  params.means = key_rows(8);
  set_angles(batch.num_tokens, params.cos, params.sin);
  params.num_angles = kHeadDim / 2;
  params.num_rows = lengths(batch);
  params.num_sequences = batch.num_sequences;
  params.num_heads = kHeads;
  params.num_kv_heads = kKvHeads;
  params.head_dim = kHeadDim;
  params.scale = 0.001f;
  params.sums_width = whole ? kWidth : kHeadDim;
  params.partials =
      partials(batch, parts(batch, batch.num_sequences * kKvHeads), params.sums_width);
  if (whole) {
    const RankAttention scratch = rank_params(batch, kWidth, kWidth);
    params.max_tiles = scratch.max_tiles;
    params.weights = scratch.weights;
    params.tile_max = scratch.tile_max;
    params.tile_sum = scratch.tile_sum;
  }
  return params;
}

RankAttention BenchInputs::sums_behind(const Batch& batch, const CodedAttention& keys) {
  RankAttention params = rank_params(batch, kWidth, kWidth);
  params.element = DeviceElement::kFloat16;
  params.value_codes = tiles(batch, 1, quarter_widths(kKvHeads), kBytes / 2);
  params.weights = keys.weights;
  params.tile_max = keys.tile_max;
  params.tile_sum = keys.tile_sum;
  return params;
}

}  // namespace kvc::testing
