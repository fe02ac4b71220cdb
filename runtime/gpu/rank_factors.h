// The factors of latent groups on a GPU, key projections laid out as kernels read them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/rope.h"
#include "model/weights.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/kernels/cuda/attention_rank.h"

namespace kvc {

// Rotary pairs of a head as kernels take them: as many as they are compiled for, or more, which they refuse
// (check_rank_attention).
std::int64_t rank_pairs(std::int64_t head_dim);

// One layer's keys and values from latents. A head's channels stand as rotary pairs: first channels, then second ones.
class RankFactors {
 public:
  // Of a layer with these weights. Error where kernels have no instance for its heads or its norm.
  RankFactors(const Reconstruction& exact, const ModelConfig& config, const RopeTables& rope,
              int layer, const LayerWeights& weights, at::Device device);

  // Of a request's basis, which lies in its cache in rows of `dtype`: channels and angles alone.
  RankFactors(const LatentGroup& group, const ModelConfig& config, const RopeTables& rope,
              int layer, at::ScalarType dtype, at::Device device);

  // For kernels; norms and epsilon included. Without projections of a request.
  RebuiltKeys keys() const;
  // The scale is 1; sums, sequences and output are the caller's.
  ProjectValues values() const;
  // As tensors, keys gathered anew. Not of a request.
  Reconstruction tensors() const;
  // Rows of channels [kv_dim, ..] as kernels take those of a request's keys, and back.
  at::Tensor to_pairs(const at::Tensor& channels) const;
  at::Tensor from_pairs(const at::Tensor& rows) const;
  std::int64_t key_rank() const { return key_rank_; }
  std::int64_t value_rank() const { return value_rank_; }
  std::int64_t bytes() const;

 private:
  void set_pairs(const RopeTables& rope, int layer, at::Device device);
  at::Tensor pair_order() const;  // [head_dim] channels in the order of their places
  at::Tensor by_pairs(const at::Tensor& rows) const;  // [num_kv_heads, head_dim, ..]

  DeviceElement element_;
  std::int64_t num_kv_heads_, head_dim_, key_rank_, value_rank_;
  at::Tensor places_;  // [2 * num_pairs] channel of a head, or -1
  // Undefined of a request, likewise value_: [num_kv_heads, 2 * num_pairs, key_rank rounded up to 32].
  at::Tensor key_;
  at::Tensor value_;                             // [kv_dim, value_rank]
  at::Tensor channels_, angles_;                 // int32, as KeyPairs
  at::Tensor key_offset_, value_offset_, norm_;  // float32, or undefined
  float norm_epsilon_ = 0;
  bool is_principal_;
  at::Tensor key_mean_, value_mean_;
};

struct GpuGroupFactors {
  // Without reconstructions; on the device.
  GroupFactors factors;
  std::vector<RankFactors> layers,
      merged_layers;  // [num_layers], or empty where the plan needs none

  std::int64_t bytes() const;
};

// weights: [num_layers] of the model, on the device. dtype: of what is computed, and of rows in the cache.
GpuGroupFactors to_gpu(const GroupFactors& factors, const LatentGroup& group,
                       const ModelConfig& config, const RopeTables& rope,
                       const std::vector<LayerWeights>& weights, at::ScalarType dtype,
                       at::Device device);

}  // namespace kvc
