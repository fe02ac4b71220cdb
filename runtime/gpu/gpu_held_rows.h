// A GPU cache's tokens of one sequence as keys and values for a further prompt's attention: exact rows, decoded codes
// and rebuilt latents, in the order of positions.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"

namespace kvc {

// Post-RoPE keys and values, [n, num_kv_heads, head_dim] of the model's type.
struct HeldRows {
  at::Tensor key, value;
};

// For a plain or coded layer, the sequence's first `num_tokens`. Without tokens that the layer dropped.
HeldRows held_rows(const GpuModel& model, const GpuCache& cache, int layer, std::size_t sequence,
                   std::int64_t num_tokens, StepExecutor& executor);
// Its first `count` codes alone: whole tiles, at least one.
HeldRows decoded_rows(const GpuModel& model, const GpuCache& cache, int layer, std::size_t sequence,
                      std::int64_t count, StepExecutor& executor);
// The same of a layer whose group decides which tokens merge: of `num_counted` ones; it has none of the others yet.
HeldRows held_group_rows(const GpuModel& model, const GpuCache& cache, int layer,
                         std::size_t sequence, std::int64_t num_tokens, std::int64_t num_counted);
// Keys and values at `positions` from latents [n, rank] of one layer; int64, on the CPU.
HeldRows rebuilt_rows(const GpuModel& model, const Reconstruction& factors, int layer,
                      const at::Tensor& latent, const at::Tensor& positions);

}  // namespace kvc
