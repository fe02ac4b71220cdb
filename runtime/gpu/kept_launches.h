// What a step launches for layers under a token policy.
#pragma once

#include <ATen/ATen.h>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/gpu/step_launches.h"
#include "runtime/gpu/step_state.h"

namespace kvc {

class KeptLaunches {
 public:
  // Without a policy it has nothing to launch. All outlive it.
  KeptLaunches(const ModelConfig& config, at::ScalarType dtype, const GpuCache& cache,
               const StepState& state, const StepExecutor& executor, StepLaunches& launches);

  // Where the new token's key and value go.
  void set_stores(int layer, AppendRows& append) const;
  // Attention to memory.attended; under a running policy also what becomes of the new token and of others. `query`: a
  // launch without rows.
  void add_attention(int layer, const DenseAttention& query, const DeviceRope& rope);

 private:
  void make_step_scratch(const ModelConfig& config, const StepExecutor& executor);
  void make_code_scratch(const ModelConfig& config, const StepExecutor& executor);
  void add_step(int layer, const DenseAttention& query);
  void add_rows(int layer, DenseAttention attention, const DeviceRope& rope);
  // Of an attention that has memory for all of a sequence's capacity: as many as so few rows need.
  int parts_of_rows(const DenseAttention& attention, std::int64_t most_rows) const;
  DeviceRows new_rows(const at::Tensor& table, std::int64_t width) const;

  const GpuCache& cache_;
  const StepState& state_;
  StepLaunches& launches_;
  at::ScalarType dtype_;
  std::int64_t products_stride_ = 0;
  int multiprocessors_ = 0;
  // Of all layers, one after the other: the new token's key and value, [num_sequences, kv_dim] each, where they lie as
  // blocks of one row, products with the query, [num_sequences, num_heads, products_stride] float32, and blocks that are
  // done, [num_sequences, num_kv_heads] int32.
  at::Tensor new_key_, new_value_, key_table_, value_table_, first_row_, products_, arrived_;
  DevicePartials codes_[2];  // of codes whose keys are post-RoPE, and before it
};

}  // namespace kvc
