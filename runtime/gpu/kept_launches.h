// Launches of a step for layers under a token policy.
#pragma once

#include <ATen/ATen.h>

#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/gpu/step_launches.h"
#include "runtime/gpu/step_state.h"

namespace kvc {

class KeptLaunches {
 public:
  // Launches nothing without a policy. All arguments must outlive it.
  KeptLaunches(const ModelConfig& config, at::ScalarType dtype, const GpuCache& cache,
               const StepState& state, const StepExecutor& executor, StepLaunches& launches);

  // Destinations of the new token's key and value.
  void set_stores(int layer, AppendRows& append) const;
  // Attention to memory.attended; under a running policy also places the new token and moves others. `query`: a
  // launch without rows.
  void add_attention(int layer, const DenseAttention& query, const DeviceRope& rope);

 private:
  void make_step_scratch(const ModelConfig& config, const StepExecutor& executor);
  void make_code_scratch(const ModelConfig& config, const StepExecutor& executor);
  void add_step(int layer, const DenseAttention& query);
  void add_rows(int layer, DenseAttention attention, const DeviceRope& rope);
  // Parts that so few rows need, of an attention with memory for a sequence's whole capacity.
  int parts_of_rows(const DenseAttention& attention, std::int64_t most_rows) const;
  DeviceRows new_rows(const at::Tensor& table, std::int64_t width) const;

  const GpuCache& cache_;
  const StepState& state_;
  StepLaunches& launches_;
  at::ScalarType dtype_;
  std::int64_t products_stride_ = 0;
  int multiprocessors_ = 0;
  // Shared by all layers in turn: the new token's key and value, [num_sequences, kv_dim] each, their table as blocks of
  // one row, products with the query, [num_sequences, num_heads, products_stride] float32, and the number of finished
  // blocks, [num_sequences, num_kv_heads] int32.
  at::Tensor new_key_, new_value_, key_table_, value_table_, first_row_, products_, arrived_;
  DevicePartials codes_[2];  // of codes whose keys are post-RoPE, and before it
};

}  // namespace kvc
