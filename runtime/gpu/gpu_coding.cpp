#include "runtime/gpu/gpu_coding.h"

#include <c10/core/InferenceMode.h>

namespace kvc {
namespace {

// The oldest exact tokens that are no sinks, as many as fill blocks.
std::int64_t due_codes(const GpuCache& cache, std::size_t sequence) {
  const MergePolicy& policy = cache.plan().policy;
  const std::int64_t left = cache.num_exact(sequence) - policy.sink_tokens - policy.window_tokens;
  return left > 0 ? left / kQuantisedTokens * kQuantisedTokens : 0;
}

// Keys are coded before RoPE. `first_code`: of the sequence, on the device.
void code_layer(const GpuModel& model, GpuCache& cache, int layer, std::size_t sequence,
                std::int64_t count, const GpuCache::CodeRows& codes, std::int32_t* first_code,
                StepExecutor& executor) {
  const std::int64_t sinks = cache.plan().policy.sink_tokens;
  const std::int64_t first = sinks + cache.num_codes(sequence);
  const at::Tensor positions = at::arange(first, first + count, at::kLong);
  const at::Tensor key =
      model.rope.unrotate(layer, cache.keys(layer, sequence, sinks, count), positions)
          .to(model.dtype)
          .contiguous();
  const at::Tensor value = cache.values(layer, sequence, sinks, count).contiguous();
  const auto launch = [&](const at::Tensor& from, const DeviceRows& to) {
    return QuantiseRows{.from = from.const_data_ptr(),
                        .from_element = device_element(model.dtype),
                        .to = to,
                        .first_rows = first_code,
                        .num_sequences = 1,
                        .count = static_cast<int>(count)};
  };
  executor.run({launch(key, codes.key), launch(value, codes.value)});
}

void code_due(const GpuModel& model, GpuCache& cache, std::size_t sequence,
              StepExecutor& executor) {
  const std::int64_t count = due_codes(cache, sequence);
  auto* first_code = static_cast<std::int32_t*>(cache.num_codes().data_ptr()) + sequence;
  for (int layer = 0; layer < cache.plan().num_layers(); ++layer) {
    const GpuCache::CodeRows codes = cache.reserve_codes(layer, sequence);
    if (count > 0) {
      code_layer(model, cache, layer, sequence, count, codes, first_code, executor);
    }
    cache.drop_exact(layer, sequence, count);
  }
  cache.count_codes(sequence, count);
}

}  // namespace

void code_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                     StepExecutor& executor) {
  const c10::InferenceMode guard;
  if (cache.has_codes()) {
    code_due(model, cache, sequence, executor);
    cache.set_pending(sequence, cache.num_exact(sequence), 0);
  }
}

void code_gpu_blocks(const GpuModel& model, GpuCache& cache, StepExecutor& executor) {
  const c10::InferenceMode guard;
  for (std::size_t sequence = 0;
       cache.has_codes() && sequence < static_cast<std::size_t>(cache.num_sequences());
       ++sequence) {
    if (due_codes(cache, sequence) > 0) {
      code_due(model, cache, sequence, executor);
      cache.set_pending(sequence, cache.num_exact(sequence), 1);
    }
  }
}

}  // namespace kvc
