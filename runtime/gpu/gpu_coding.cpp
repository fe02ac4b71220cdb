#include "runtime/gpu/gpu_coding.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <vector>

#include "runtime/gpu/gpu_held_rows.h"
#include "runtime/gpu/row_coding.h"

namespace kvc {
namespace {

// Keys are coded before RoPE. `first_code`: of the sequence, on the device.
void code_layer(const GpuModel& model, GpuCache& cache, int layer, std::size_t sequence,
                std::int64_t count, const CodeRows& codes, std::int32_t* first_code,
                StepExecutor& executor) {
  const std::int64_t sinks = cache.plan().compression.sink_tokens;
  code_rows(raw_keys(model, layer, cache.keys(layer, sequence, sinks, count),
                     sinks + cache.num_codes(sequence)),
            cache.values(layer, sequence, sinks, count), codes, first_code, executor);
}

void code_plain_layers(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                       std::int64_t count, StepExecutor& executor) {
  auto* first_code = static_cast<std::int32_t*>(cache.num_codes().data_ptr()) + sequence;
  for (int layer = 0; layer < cache.plan().num_layers(); ++layer) {
    if (cache.plan().layers[static_cast<std::size_t>(layer)] != KvSource::kPlain) {
      continue;
    }
    const CodeRows codes = cache.reserve_codes(layer, sequence);
    if (count > 0) {
      code_layer(model, cache, layer, sequence, count, codes, first_code, executor);
    }
    cache.drop_exact(layer, sequence, count);
  }
}

// One sequence's layers that are coded together.
class TileEncoder {
 public:
  TileEncoder(const GpuModel& model, GpuCache& cache, std::size_t store, std::size_t sequence,
              StepExecutor& executor)
      : model_(model),
        cache_(cache),
        tiles_(cache.tiles()[store]),
        blocks_(model.coded[store].encoder.blocks()),
        sequence_(sequence),
        executor_(executor) {}

  // Codes exact tokens that are no sinks: those from `first` on, the oldest being 0, up to `last`.
  void encode(std::int64_t first, std::int64_t last) const {
    for (std::int64_t done = first; done < last && blocks_.num_coefficients > 0;
         done += kCodingTokens) {
      encode_some(done, std::min(kCodingTokens, last - done));
    }
    if (codes_first_token(cache_.plan()) && cache_.num_codes(sequence_) + first == 0 && last > 0) {
      keep_first();
    }
  }

 private:
  void keep_first() const {
    for (int index = 0; index < tiles_.layers.num_layers; ++index) {
      const HeldRows rows = decoded_rows(model_, cache_, tiles_.layers.first_layer + index,
                                         sequence_, kDeviceTileTokens, executor_);
      tiles_.set_first(sequence_, index, rows.key[0], rows.value[0]);
    }
  }

  void encode_some(std::int64_t done, std::int64_t count) const {
    const std::int64_t sinks = cache_.plan().compression.sink_tokens,
                       first = sinks + cache_.num_codes(sequence_) + done;
    const at::TensorOptions numbers = at::TensorOptions(at::kFloat).device(model_.device());
    const at::Tensor positions = at::arange(first, first + count, numbers.dtype(at::kLong)),
                     z = at::empty({count, blocks_.num_coefficients}, numbers);
    EncodeTokens encode{.of = blocks_,
                        .element = device_element(model_.dtype),
                        .positions = positions.const_data_ptr<std::int64_t>(),
                        .num_positions = first + count,
                        .count = static_cast<int>(count),
                        .z = z.data_ptr<float>()};
    std::vector<at::Tensor> rows;  // until they are queued
    const auto add = [&](const at::Tensor& tokens) {
      rows.push_back(tokens);
      return EngineRows{tokens.const_data_ptr(), tokens.stride(0), tokens.stride(1)};
    };
    for (int index = 0; index < tiles_.layers.num_layers; ++index) {
      const int layer = tiles_.layers.first_layer + index;
      encode.keys[index] = add(cache_.keys(layer, sequence_, sinks + done, count));
      encode.values[index] = add(cache_.values(layer, sequence_, sinks + done, count));
      encode.ropes[index] = device_rope(model_.angles(layer, first + count));
    }
    executor_.run({encode, StoreCodes{.of = encode.of,
                                      .tables = tiles_.tables(),
                                      .sequence = static_cast<int>(sequence_),
                                      .first_tile = static_cast<int>(
                                          (cache_.num_codes(sequence_) + done) / kDeviceTileTokens),
                                      .count = encode.count,
                                      .z = encode.z}});
  }

  const GpuModel& model_;
  const GpuCache& cache_;
  GpuTiles& tiles_;
  const PagedBlocks& blocks_;
  std::size_t sequence_;
  StepExecutor& executor_;
};

// The first `done` of the tokens that become codes now have codes already.
void code_coded_layers(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                       std::int64_t done, std::int64_t count, StepExecutor& executor) {
  for (std::size_t store = 0; store < cache.tiles().size(); ++store) {
    GpuTiles& tiles = cache.tiles()[store];
    tiles.reserve(sequence);
    TileEncoder(model, cache, store, sequence, executor).encode(done, count);
    for (int index = 0; index < tiles.layers.num_layers; ++index) {
      cache.drop_exact(tiles.layers.first_layer + index, sequence, count);
    }
  }
}

void code_due(const GpuModel& model, GpuCache& cache, std::size_t sequence, bool have_codes,
              StepExecutor& executor) {
  const std::int64_t count = tokens_in_blocks(cache.plan(), cache.num_exact(sequence));
  if (cache.has_integers()) {
    code_plain_layers(model, cache, sequence, count, executor);
  }
  code_coded_layers(model, cache, sequence, have_codes ? count : 0, count, executor);
  cache.count_codes(sequence, count);
}

}  // namespace

bool codes_prompts_by_layer(const KvPlan& plan, KvDtype dtype) {
  return codes_prompts(plan) && reads_codes_by_layer(plan, dtype);
}

void code_gpu_piece(const GpuModel& model, GpuCache& cache, int layer, std::size_t sequence,
                    std::int64_t num_before, std::int64_t num_tokens, StepExecutor& executor) {
  const auto store = static_cast<std::size_t>(&cache.tiles_of(layer) - cache.tiles().data());
  cache.tiles()[store].reserve(sequence);
  const std::int64_t held = cache.num_codes(sequence);
  TileEncoder(model, cache, store, sequence, executor)
      .encode(tokens_in_blocks(cache.plan(), num_before - held),
              tokens_in_blocks(cache.plan(), num_tokens - held));
}

void code_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                     StepExecutor& executor) {
  const c10::InferenceMode guard;
  if (cache.has_codes()) {
    code_due(model, cache, sequence, codes_prompts_by_layer(cache.plan(), cache.kv_dtype()),
             executor);
    cache.set_exact(sequence, 0);
  }
}

void code_gpu_blocks(const GpuModel& model, GpuCache& cache, StepExecutor& executor) {
  const c10::InferenceMode guard;
  for (std::size_t sequence = 0;
       cache.has_codes() && sequence < static_cast<std::size_t>(cache.num_sequences());
       ++sequence) {
    if (tokens_in_blocks(cache.plan(), cache.num_exact(sequence)) > 0) {
      code_due(model, cache, sequence, /*have_codes=*/false, executor);
      cache.set_exact(sequence, 1);
    }
  }
}

}  // namespace kvc
