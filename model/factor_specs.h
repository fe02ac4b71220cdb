// The tensors that a plan adds to a checkpoint (core/conversion_file.h): the one table that what checks, estimates and
// writes them goes by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/kv_plan.h"
#include "model/basis_codes.h"

namespace kvc {

// When a factored checkpoint has it; conversion.safetensors may have more.
enum class FactorUse {
  kAlways,
  kLatents,     // where latents A x are computed (needs_latents)
  kUnrefitted,  // there, or where nothing was refitted
  kRefitted,    // where it was
  kExact,       // where the block has no codes, or --factor-dtype names a type
  kCode         // elsewhere
};

struct FactorSpec {
  std::string name;
  std::vector<std::int64_t> shape;  // kAnySize: what the plan does not know
  FactorUse use = FactorUse::kAlways;
  Dtype dtype = Dtype::kF32;  // in conversion.safetensors

  bool is_optional() const { return use == FactorUse::kRefitted || use == FactorUse::kCode; }
  bool has(const std::vector<std::int64_t>& other) const;  // of this shape?
};

// "kvconvert.groups.<group>.<name>"
std::string factor_name(int group, const std::string& name);

// None for groups whose basis is the request's.
std::vector<FactorSpec> group_factors(const KvPlan& plan, int group, std::int64_t hidden_size);
std::vector<FactorSpec> fused_factors(const KvPlan& plan, const FusedLayer& layer);
// `coefficients`: the block's, or as many as are expected.
std::vector<FactorSpec> coded_factors(const KvPlan& plan, int block, std::int64_t coefficients);

// What a factored checkpoint holds of one part of the plan.
struct StoredForm {
  bool latents = true;    // needs_latents
  bool refitted = false;  // B for merged tokens
  bool codes = false;     // of E and F
};
bool is_stored(FactorUse use, const StoredForm& form);

}  // namespace kvc
