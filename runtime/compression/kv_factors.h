// The tensors that a plan's layers require beside the model's own, loaded once per engine; names in
// core/conversion_file.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/compression/fused_factors.h"
#include "runtime/compression/latent_factors.h"

namespace kvc {

struct KvFactors {
  LatentFactors latent;
  CodedFactors coded;
  std::vector<FusedFactors> fused;  // ascending by layer

  std::int64_t bytes() const { return latent.bytes() + coded.bytes() + bytes_of(fused); }
};

// Throws Error naming a tensor that is missing or has another shape.
inline KvFactors load_kv_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                 const ModelConfig& config, at::ScalarType dtype) {
  return {load_latent_factors(checkpoint, plan, config.hidden_size, dtype),
          load_coded_factors(checkpoint, plan), load_fused_factors(checkpoint, plan, config)};
}

}  // namespace kvc
