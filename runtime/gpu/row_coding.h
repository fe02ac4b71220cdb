// Codes rows of a plain layer as integers on a GPU.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/kv_plan.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/kernels/cuda/device_rows.h"

namespace kvc {

// One sequence's keys, with scales per channel of 32 rows, and values, with scales per row.
struct CodeRows {
  DeviceRows key, value;
};

// key, value [count, num_kv_heads, head_dim], 16-bit numbers, become the rows from *first_row, on the device, on. count: a
// multiple of 32.
void code_rows(const at::Tensor& key, const at::Tensor& value, const CodeRows& to,
               const std::int32_t* first_row, StepExecutor& executor);

// rows [num_kv_heads, n, head_dim], 16-bit numbers, become codes [num_kv_heads, n, code_row_bytes()] with scales per
// row, as in runtime/kernels/cuda/budget_step.h.
void code_head_rows(const at::Tensor& rows, KvDtype dtype, const at::Tensor& codes,
                    StepExecutor& executor);

DeviceElement code_element(KvDtype dtype);  // of int8 or int4

// Keys of the tokens from position `first` on before RoPE, in the model's dtype.
at::Tensor raw_keys(const GpuModel& model, int layer, const at::Tensor& key, std::int64_t first);

}  // namespace kvc
