// The tensors that a plan adds to a checkpoint (core/conversion_file.h): the one table that what checks, estimates and
// writes them goes by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/dtype.h"
#include "core/kv_plan.h"
#include "model/basis_codes.h"
#include "model/coefficient_codes.h"

namespace kvc {

// When a factored checkpoint has it; conversion.safetensors may have more.
enum class FactorUse {
  kAlways,
  kLatents,     // where latents A x are computed (needs_latents)
  kUnrefitted,  // there, or where nothing was refitted
  kRefitted,    // where it was
  kExact,       // where the block has no codes, or --factor-dtype names a type
  kCode,        // elsewhere
  kChoice  // never: for export, coefficients with 16 bits of a matrix that --factor-dtype auto stores in 8
};

struct FactorSpec {
  std::string name;
  std::vector<std::int64_t> shape;  // kAnySize: what the plan does not know
  FactorUse use = FactorUse::kAlways;
  Dtype dtype = Dtype::kF32;  // in conversion.safetensors
  CoefficientAxis axis = CoefficientAxis::
      kNone;  // of a matrix that may be stored as codes (model/coefficient_codes.h)

  bool is_optional() const {
    return use == FactorUse::kRefitted || use == FactorUse::kCode || use == FactorUse::kChoice;
  }
  bool has(const std::vector<std::int64_t>& other) const;  // true if it has this shape
};

// "kvconvert.groups.<group>.<name>"
std::string factor_name(int group, const std::string& name);
// Name of the tensor for FactorUse::kChoice, int64 [1], that belongs to a matrix.
std::string choice_name(const std::string& matrix);

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

// The tensor `name` of a part in `dtype`, in whatever form the checkpoint has it. Error naming it if it is missing, has
// another shape, or is not as model/coefficient_codes.h says.
at::Tensor load_factor(const Checkpoint& checkpoint, const std::vector<FactorSpec>& specs,
                       const std::string& name, at::ScalarType dtype);

}  // namespace kvc
