// The keys and values of a batch of sequences on a GPU: of every plain layer, pages for as many tokens as a sequence
// will have. Nothing moves and nothing grows, so that addresses hold for every step.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/kernels/cuda/device_rows.h"

namespace kvc {

class GpuCache {
 public:
  // `capacities`: tokens of each sequence. `page_tokens`: a multiple of 32. dtype: bfloat16 or float16.
  GpuCache(const KvPlan& plan, at::ScalarType dtype, at::Device device, std::int64_t page_tokens,
           const std::vector<std::int64_t>& capacities);

  // What sequences of `capacities` take: plain_layer_bytes() of each, over the plan's plain layers.
  static std::int64_t bytes_of(const KvPlan& plan, at::ScalarType dtype, std::int64_t page_tokens,
                               const std::vector<std::int64_t>& capacities);
  std::int64_t bytes() const;
  std::int64_t sequence_bytes(std::size_t sequence) const;
  std::int64_t num_sequences() const { return static_cast<std::int64_t>(first_rows_.size()) - 1; }
  const KvPlan& plan() const { return plan_; }

  // A plain layer's rows `first` .. `first` + `count` - 1 of one sequence, [count, num_kv_heads, head_dim]: to be
  // read or written. Keys are post-RoPE.
  at::Tensor keys(int layer, std::size_t sequence, std::int64_t first, std::int64_t count) const;
  at::Tensor values(int layer, std::size_t sequence, std::int64_t first, std::int64_t count) const;
  // Sequence `to` begins with the first `count` tokens of `from`.
  void copy(std::size_t from, std::size_t to, std::int64_t count);

  // All sequences' rows of a plain layer, for kernels.
  DeviceRows key_rows(int layer) const { return rows_of(layers_[index(layer)].key_table); }
  DeviceRows value_rows(int layer) const { return rows_of(layers_[index(layer)].value_table); }

 private:
  struct Layer {
    at::Tensor key, value;              // [rows of all sequences, num_kv_heads, head_dim]
    at::Tensor key_table, value_table;  // [num_sequences, max_blocks] int64: addresses of pages
  };
  std::size_t index(int layer) const {
    return static_cast<std::size_t>(plain_index_[static_cast<std::size_t>(layer)]);
  }
  at::Tensor table_of(const at::Tensor& rows) const;
  DeviceRows rows_of(const at::Tensor& table) const;

  KvPlan plan_;
  at::ScalarType dtype_;
  std::int64_t page_tokens_;
  std::vector<std::int64_t> first_rows_;  // [num_sequences + 1], whole pages
  std::int64_t max_blocks_ = 0;
  std::vector<int> plain_index_;  // [num_layers] into layers_, -1 for other layers
  std::vector<Layer> layers_;
};

// The same type for kernels; Error for another than bfloat16 and float16.
DeviceElement device_element(at::ScalarType dtype);

}  // namespace kvc
