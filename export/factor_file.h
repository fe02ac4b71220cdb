// conversion.safetensors: the factors of a plan's parts.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
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
    bool is_code = false;  // written as it is
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

  SafetensorsFile file_;
  std::vector<Part> parts_;
};

// UsageError unless `name` is auto, float32, bfloat16 or float16: the types that factors may be written in.
void check_factor_dtype(const std::string& name);
// auto: each is written in the cheapest form; for coded blocks these are the codes that the conversion made.
bool chooses_factor_type(const std::string& name);

}  // namespace kvc
