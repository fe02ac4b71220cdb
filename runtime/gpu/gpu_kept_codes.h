// What one layer of each sequence keeps under snapkv or pyramidkv, but for its first rows and its last ones, as integer
// codes. Keys are coded post-RoPE where tokens have left, and before RoPE where the layer holds all of its text.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/gpu/gpu_rows.h"
#include "runtime/gpu/row_coding.h"

namespace kvc {

// What codes are made with.
struct RowCoder {
  const GpuModel& model;
  StepExecutor& executor;
};

class GpuKeptCodes {
 public:
  // dtype: int8 or int4. Of each sequence: most_rows, the codes that there will be, whose pages are taken now; is_raw,
  // whether keys are coded before RoPE.
  GpuKeptCodes(const KvPlan& plan, KvDtype dtype, const GpuPages& pages,
               const std::vector<std::int64_t>& most_rows, const std::vector<bool>& is_raw);

  std::int64_t bytes(std::size_t sequence) const {
    return key_.bytes(sequence) + value_.bytes(sequence);
  }
  void copy(std::size_t from, std::size_t to);
  // key, value [count, num_kv_heads, head_dim], keys post-RoPE: the layer's next rows. count: a multiple of 32.
  void append(const RowCoder& coder, int layer, std::size_t sequence, const at::Tensor& key,
              const at::Tensor& value);

  DeviceRows keys() const { return key_.table(); }
  DeviceRows values() const { return value_.table(); }
  // Of each sequence, the codes whose keys are such; null where no sequence has any.
  const std::int32_t* num_rows(bool raw) const;

 private:
  GpuRows key_, value_;
  std::int64_t first_position_;  // of raw keys
  std::vector<bool> is_raw_;
  std::vector<std::int64_t> counts_;
  at::Tensor num_rows_;  // int32 [2, num_sequences]: post-RoPE, raw
};

}  // namespace kvc
