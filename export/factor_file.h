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

namespace kvc {

class FactorFile {
 public:
  // Error naming the tensor when one that the plan needs is missing, has another shape or type than
  // the plan says, or belongs to no part. Tuned weights may be there where layers are fused.
  FactorFile(const std::filesystem::path& path, const KvPlan& plan, std::int64_t hidden_size);

  const std::vector<TensorInfo>& tensors() const { return file_.tensors(); }
  bool contains(const std::string& name) const { return file_.find(name) != nullptr; }
  at::Tensor load(const std::string& name, at::ScalarType dtype) const;
  std::span<const std::byte> bytes(const TensorInfo& tensor) const { return file_.bytes(tensor); }
  // The tuned weight that replaces the checkpoint's tensor, or nullptr.
  const TensorInfo* tuned(const std::string& tensor) const;

 private:
  SafetensorsFile file_;
};

// Codes of a coded block's E and F, and the two where there are codes.
bool is_code(const std::string& name);
bool has_codes(const FactorFile& factors, const std::string& name);
// Does a tuned weight have this name?
bool is_tuned(const std::string& name);
// "kvconvert.groups.<group>.<name>"
std::string factor_name(int group, const std::string& name);
// "kvconvert.coded.<block>.<name>"
std::string coded_name(int block, const std::string& name);

}  // namespace kvc
