// The tensors that a plan's layers need beside the model's own, loaded once per engine; names in
// core/conversion_file.h.
#pragma once

#include <cstdint>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/compression/latent_factors.h"

namespace kvc {

struct KvFactors {
  LatentFactors latent;
  CodedFactors coded;

  std::int64_t bytes() const { return latent.bytes() + coded.bytes(); }
};

// Throws Error naming a tensor that is missing or misshapen.
inline KvFactors load_kv_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                 std::int64_t hidden_size, at::ScalarType dtype) {
  return {load_latent_factors(checkpoint, plan, hidden_size, dtype),
          load_coded_factors(checkpoint, plan)};
}

}  // namespace kvc
