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
  // Under a running policy: attention to memory.attended, and what becomes of the new token and of others. `query`: a
  // launch without rows.
  void add_step(int layer, const DenseAttention& query);
  // Under the others: the rows that `attention` is over.
  void set_rows(int layer, DenseAttention& attention) const;

 private:
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
};

}  // namespace kvc
