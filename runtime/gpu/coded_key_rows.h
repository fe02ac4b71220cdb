// Keys whose codes meet the query on a GPU (forms `pairs` and `rotated`), in the kernel's layout.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/fused_kv.h"
#include "runtime/compression/coding.h"
#include "runtime/kernels/coded_keys.h"
#include "runtime/kernels/cuda/attention_codes.h"

namespace kvc {

// KeyRows on a device.
struct KeyRowTensors {
  at::Tensor channels, angles;  // int32 [num_kv_heads, 2, count], [num_kv_heads, count]
  at::Tensor weights;           // float32, as channels

  KeyRows device() const;
  std::int64_t bytes() const;
};

// One layer's. Weights are float32; means that are zero in both channels of a pair have no row.
class GpuKeyRows {
 public:
  GpuKeyRows() = default;  // of a layer whose keys are rebuilt
  // heads: [num_kv_heads], of one form that is not kBases.
  GpuKeyRows(const std::vector<const CodedKeyRows*>& heads, const ChannelPairs& pairs,
             at::Device device);

  bool are_met() const { return mean_.defined(); }
  // codes, means and whether they are turned; the caller sets the rest.
  CodedAttention attention() const;
  // Keys before RoPE from levels times gains of each head, [n, its coefficients]; `turn_back` undoes RoPE.
  at::Tensor decode(const std::vector<at::Tensor>& levels, const TurnKeys& turn_back) const;
  std::int64_t bytes() const;

 private:
  bool turned_ = false;
  KeyRowTensors codes_, means_;
  at::Tensor mean_;  // [num_kv_heads, head_dim] float32
};

}  // namespace kvc
