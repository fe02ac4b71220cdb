// The factors of latent groups on a GPU, with key projections in the kernels' layout.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/rope.h"
#include "model/weights.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/gpu/key_places.h"
#include "runtime/kernels/cuda/attention_rank.h"

namespace kvc {

inline constexpr std::int64_t kRankStep = 32;  // ranks of a row of the key projection

// One layer's keys and values from latents. A head's channels are in rotary pairs: first channels, then second ones.
class RankFactors {
 public:
  // For a layer with these weights. Error if kernels have no instance for its heads or its norm.
  RankFactors(const Reconstruction& exact, const ModelConfig& config, const RopeTables& rope,
              int layer, const LayerWeights& weights, at::Device device);

  // For a request's basis, which is in its cache in rows of `dtype`: only channels and angles.
  RankFactors(const LatentGroup& group, const ModelConfig& config, const RopeTables& rope,
              int layer, at::ScalarType dtype, at::Device device);

  // For kernels, with norms and epsilon; without a request's projections.
  RebuiltKeys keys() const;
  // Key channels that latents store, which are not rebuilt.
  StoredKeys stored() const;
  // The scale is 1; the caller sets sums, sequences and output.
  ProjectValues values() const;
  // As tensors, with keys gathered again. Not for a request.
  Reconstruction tensors() const;
  // Rows of channels [kv_dim, ..] in the kernels' order of a request's keys, and back.
  at::Tensor to_pairs(const at::Tensor& channels) const;
  at::Tensor from_pairs(const at::Tensor& rows) const;
  std::int64_t key_rank() const { return key_rank_; }
  std::int64_t value_rank() const { return value_rank_; }
  std::int64_t bytes() const;

 private:
  struct Pairs {
    Pairs() = default;
    Pairs(const PairPlaces& given, at::Device device);
    KeyPairs device() const;

    PairPlaces places;
    at::Tensor channels, angles;  // int32, as KeyPairs
    at::Tensor offset;            // float32, or undefined
  };
  void set_pairs(const KeyPlaces& places, at::Device device);
  // [head_dim] channels in the order of their places, equal in all heads.
  at::Tensor pair_order() const;
  at::Tensor rows_of(const Pairs& pairs) const;  // [num_kv_heads * 2 * num_pairs] channel, or -1
  // Channels [kv_dim, ..] of the pairs, zeros where there is none: [num_kv_heads, 2 * num_pairs, ..]
  at::Tensor by_pairs(const Pairs& pairs, const at::Tensor& channels) const;

  DeviceElement element_;
  std::int64_t num_kv_heads_, head_dim_, key_rank_, value_rank_;
  Pairs pairs_, stored_;
  std::int64_t num_stored_ = 0;
  at::Tensor host_columns_, first_columns_;  // [num_kv_heads] of the latent; int32 on the device
  // [num_kv_heads, 2 * num_pairs, key_rank rounded up to 32]; undefined for a request, as is value_.
  at::Tensor key_;
  at::Tensor value_;                // [kv_dim, value_rank]
  at::Tensor value_offset_, norm_;  // float32, or undefined
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

// weights: [num_layers] of the model, on the device. dtype: of computation and of rows in the cache.
GpuGroupFactors to_gpu(const GroupFactors& factors, const LatentGroup& group,
                       const ModelConfig& config, const RopeTables& rope,
                       const std::vector<LayerWeights>& weights, at::ScalarType dtype,
                       at::Device device);

}  // namespace kvc
