// The tensors that a plan's layers require beside the model's own, loaded once per engine; names in
// core/conversion_file.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "core/kv_plan_parts.h"
#include "model/fused_kv.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/store/row_store.h"

namespace kvc {

struct FusedFactors {
  FusedLayer layer;
  ChannelPairs pairs;
  FusedWeights weights;  // float32, contiguous

  std::int64_t bytes() const {
    return static_cast<std::int64_t>(weights.key.weight.nbytes() + weights.value.weight.nbytes());
  }
};

struct KvFactors {
  LatentFactors latent;
  CodedFactors coded;
  std::vector<FusedFactors> fused;  // ascending by layer

  std::int64_t bytes() const { return latent.bytes() + coded.bytes() + bytes_of(fused); }
};

// Throws Error naming a tensor that is missing or has another shape, or if the checksum of all is another.
KvFactors load_kv_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                          const ModelConfig& config, at::ScalarType dtype);
// Those of the layers of one part of their plan, for with_part_only(); shares the tensors.
KvFactors factors_of(const KvFactors& factors, const KvPlan& plan, const LayerRange& part);

}  // namespace kvc
