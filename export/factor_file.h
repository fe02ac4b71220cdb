// conversion.safetensors: the factors of a plan's parts.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/kv_plan.h"
#include "core/safetensors.h"
#include "model/factor_specs.h"

namespace kvc {

class FactorFile {
 public:
  // Error naming the tensor when one that the plan needs is missing, has another shape or type than
  // the plan says, or belongs to no part. Tuned weights may be there where layers are fused.
  FactorFile(const std::filesystem::path& path, const KvPlan& plan, std::int64_t hidden_size);

  struct Stored {
    const TensorInfo& tensor;
    bool is_code = false;                           // written as it is
    CoefficientAxis axis = CoefficientAxis::kNone;  // of a matrix that may be written in 8 bits
    std::optional<std::int64_t> wide;  // there where it should be: coefficients with 16 bits
  };
  // What a factored checkpoint of the plan holds: with codes in place of the E and F of coded blocks that have
  // them where `coded`, else without codes. No tuned weights.
  std::vector<Stored> stored(bool coded) const;
  at::Tensor load(const std::string& name, at::ScalarType dtype) const;
  std::span<const std::byte> bytes(const TensorInfo& tensor) const { return file_.bytes(tensor); }
  // The tuned weight that replaces the checkpoint's tensor, or nullptr.
  const TensorInfo* tuned(const std::string& tensor) const;

 private:
  // One group's, fused layer's or coded block's, the optional ones where the file has them.
  struct Part {
    std::vector<FactorSpec> factors;
    StoredForm form;
  };
  void add_part(const std::vector<FactorSpec>& specs, bool latents);
  std::optional<std::int64_t> wide_coefficients(const FactorSpec& matrix) const;

  SafetensorsFile file_;
  std::vector<Part> parts_;
};

// UsageError unless `name` is auto, float32, bfloat16, float16 or int8: the types that factors may be written in.
void check_factor_dtype(const std::string& name);
// auto: each is written in the cheapest form that the conversion found accurate enough.
bool chooses_factor_type(const std::string& name);
// int8: matrices in 8 bits, without a look at what that costs; the rest in float32.
bool is_integer_factor_type(const std::string& name);

}  // namespace kvc
