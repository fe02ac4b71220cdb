// Integer codes of what layers keep under snapkv or pyramidkv, without their first and last rows. Keys are coded
// post-RoPE if tokens have left, and before RoPE if the layer has the whole text.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/gpu/gpu_rows.h"
#include "runtime/gpu/row_coding.h"

namespace kvc {

// Inputs of coding.
struct RowCoder {
  const GpuModel& model;
  StepExecutor& executor;
};

class GpuKeptCodes {
 public:
  // dtype: int8 or int4. Per sequence: most_rows, the future number of codes, whose pages are allocated now; is_raw,
  // whether keys are coded before RoPE.
  GpuKeptCodes(const KvPlan& plan, KvDtype dtype, const GpuPages& pages,
               const std::vector<std::int64_t>& most_rows, const std::vector<bool>& is_raw);

  std::int64_t bytes(std::size_t sequence) const {
    return key_.bytes(sequence) + value_.bytes(sequence);
  }
  void copy(std::size_t from, std::size_t to);
  // key, value [count, num_kv_heads, head_dim], keys post-RoPE: appends the layer's next rows. count: a
  // multiple of 32.
  void append(const RowCoder& coder, int layer, std::size_t sequence, const at::Tensor& key,
              const at::Tensor& value);

  DeviceRows keys() const { return key_.table(); }
  DeviceRows values() const { return value_.table(); }
  // Number of codes of this kind per sequence; null if no sequence has any.
  const std::int32_t* num_rows(bool raw) const;

 private:
  GpuRows key_, value_;
  std::int64_t first_position_;  // of raw keys
  std::vector<bool> is_raw_;
  std::vector<std::int64_t> counts_;
  at::Tensor num_rows_;  // int32 [2, num_sequences]: post-RoPE, raw
};

}  // namespace kvc
