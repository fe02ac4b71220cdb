// A model's weights on a GPU.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/weights.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/gpu/coded_ranks.h"
#include "runtime/gpu/rank_factors.h"
#include "runtime/kernels/cuda/device_rope.h"

namespace kvc {

// A layer of keys and a layer of values that are read together.
struct StoredLayers {
  int key = 0, value = 0;
};

struct GpuModel {
  ModelConfig config;
  at::ScalarType dtype;  // of weights and activations
  RopeTables rope;       // the CPU's
  ModelWeights weights;
  std::vector<LayerWeights> layers;  // projections fused
  std::vector<FusedFactors> fused;
  std::vector<GpuGroupFactors> groups;  // of the plan's latent groups
  std::vector<GpuCodedFactors> coded;   // of layers that are coded together

  // Angles on the device, kept for later calls.
  mutable std::map<int, RopeRows> angle_tables{};  // by the layers' tables

  at::Device device() const { return weights.lm_head.weight.device(); }
  // They are of at least `num_positions` positions; what it returned before stays valid while somebody holds it.
  RopeRows angles(int layer, std::int64_t num_positions) const;
  // Keys of the tokens from position `first` on, [n, num_kv_heads, head_dim]: turned by RoPE, and turned back in float32.
  at::Tensor rotate(int layer, const at::Tensor& key, std::int64_t first) const;
  at::Tensor unrotate(int layer, const at::Tensor& key, std::int64_t first) const;
  std::int64_t bytes() const;
  RopeRows angles_from(int layer, std::int64_t first,
                       std::int64_t count) const;  // of these positions
  const FusedFactors* fused_of(int layer) const;   // null: it is not fused
  // The layers that a layer without latents reads: itself, or a fused one's sources.
  std::vector<StoredLayers> sources_of(int layer) const;
};

// Angles on the device for kernels, which do not keep them.
DeviceRope device_rope(const RopeRows& rows);

// Reads a checkpoint layer by layer, so CPU memory never has more than one. Error with the bytes if
// `free_bytes` are too few.
GpuModel load_gpu_model(const Checkpoint& checkpoint, const KvPlan& plan, at::ScalarType dtype,
                        WeightType type, at::Device device, std::int64_t free_bytes);

}  // namespace kvc
