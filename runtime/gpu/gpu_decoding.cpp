// Decodes a GPU cache's codes to tensors, for a further prompt's attention. Steps read the codes themselves.
#include <algorithm>
#include <vector>

#include "runtime/gpu/gpu_held_rows.h"
#include "runtime/store/row_store.h"

namespace kvc {
namespace {

// Coded tokens of one layer and sequence.
class CodeReader {
 public:
  CodeReader(const GpuModel& model, const GpuCache& cache, int layer, std::size_t sequence,
             StepExecutor& executor)
      : model_(model), cache_(cache), layer_(layer), sequence_(sequence), executor_(executor) {}

  // Keys before RoPE; whole tiles.
  HeldRows read(std::int64_t first, std::int64_t count) const {
    if (cache_.plan().layers[static_cast<std::size_t>(layer_)] == KvSource::kPlain) {
      const CodeRows codes = cache_.codes(layer_, sequence_);
      return {integers(codes.key, first, count), integers(codes.value, first, count)};
    }
    const GpuTiles& tiles = cache_.tiles_of(layer_);
    std::vector<at::Tensor> levels;
    for (int block = 0; block < tiles.layers.num_blocks; ++block) {
      levels.push_back(
          tile_levels(tiles.block(static_cast<std::size_t>(block), sequence_), first, count));
    }
    const auto store = static_cast<std::size_t>(&tiles - cache_.tiles().data()),
               index = static_cast<std::size_t>(layer_ - tiles.layers.first_layer);
    const std::int64_t position = cache_.plan().compression.sink_tokens + first;
    const DecodedTokens decoded = model_.coded[store].layers[index].decode(
        levels, [&](const at::Tensor& keys) { return model_.unrotate(layer_, keys, position); },
        /*begins_text=*/position == 0);
    return {decoded.key.to(model_.dtype), decoded.value.to(model_.dtype)};
  }

 private:
  at::Tensor numbers(const std::vector<std::int64_t>& shape, at::ScalarType dtype) const {
    return at::empty(shape, at::TensorOptions(dtype).device(model_.device()));
  }

  at::Tensor integers(const DeviceRows& codes, std::int64_t first, std::int64_t count) const {
    const KvPlan& plan = cache_.plan();
    at::Tensor rows = numbers({count, plan.num_kv_heads, plan.head_dim}, model_.dtype);
    executor_.run({DequantiseRows{.from = codes,
                                  .first = static_cast<std::int32_t>(first),
                                  .count = static_cast<int>(count),
                                  .to = rows.data_ptr(),
                                  .to_element = device_element(model_.dtype)}});
    return rows;
  }

  // One block's, in units of the coefficients' steps. [count, num_coefficients] float32
  at::Tensor tile_levels(const DeviceTiles& tiles, std::int64_t first, std::int64_t count) const {
    at::Tensor levels = numbers({count, tiles.num_coefficients}, at::kFloat);
    if (tile_bytes(tiles) > 0) {
      executor_.run({DecodeTiles{.tiles = tiles,
                                 .first_tile = static_cast<int>(first / kDeviceTileTokens),
                                 .count = static_cast<int>(count / kDeviceTileTokens),
                                 .levels = levels.data_ptr<float>()}});
    }
    return levels;
  }

  const GpuModel& model_;
  const GpuCache& cache_;
  int layer_;
  std::size_t sequence_;
  StepExecutor& executor_;
};

}  // namespace

// Some tokens at a time lie in float32.
HeldRows decoded_rows(const GpuModel& model, const GpuCache& cache, int layer, std::size_t sequence,
                      std::int64_t count, StepExecutor& executor) {
  const CodeReader codes(model, cache, layer, sequence, executor);
  const std::int64_t sinks = cache.plan().compression.sink_tokens;
  std::vector<at::Tensor> keys, values;
  for (std::int64_t first = 0; first < count; first += kChunkTokens) {
    const std::int64_t rows = std::min(kChunkTokens, count - first);
    const HeldRows tokens = codes.read(first, rows);
    keys.push_back(model.rotate(layer, tokens.key, sinks + first));
    values.push_back(tokens.value);
  }
  return {at::cat(keys), at::cat(values)};
}

}  // namespace kvc
