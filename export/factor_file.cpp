#include "export/factor_file.h"

#include <fmt/ranges.h>

#include <cstring>
#include <set>

#include "core/conversion_file.h"
#include "core/error.h"
#include "core/kv_plan.h"
#include "core/mapped_file.h"
#include "model/weights.h"

namespace kvc {

void FactorFile::add_part(const std::vector<FactorSpec>& specs, bool latents) {
  Part& part = parts_.emplace_back();
  part.form.latents = latents;
  const std::string path = file_.path().string();
  for (const FactorSpec& spec : specs) {
    const TensorInfo* found = file_.find(spec.name);
    KVC_CHECK(found != nullptr || spec.is_optional(),
              "{}: {} is missing; convert the checkpoint again", path, spec.name);
    if (found == nullptr) {
      continue;
    }
    KVC_CHECK(found->dtype == spec.dtype, "{}: {} is {}, expected {}", path, spec.name,
              dtype_name(found->dtype), dtype_name(spec.dtype));
    KVC_CHECK(spec.has(found->shape), "{}: {} has shape [{}], the plan needs [{}]", path, spec.name,
              fmt::join(found->shape, ", "), fmt::join(spec.shape, ", "));
    part.form.refitted = part.form.refitted || spec.use == FactorUse::kRefitted;
    part.form.codes = part.form.codes || spec.use == FactorUse::kCode;
    part.factors.push_back(spec);
  }
}

FactorFile::FactorFile(const std::filesystem::path& path, const KvPlan& plan,
                       std::int64_t hidden_size)
    : file_(SafetensorsFile::open(path)) {
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    add_part(group_factors(plan, group, hidden_size), needs_latents(plan, group));
  }
  for (const FusedLayer& layer : plan.fused) {
    add_part(fused_factors(plan, layer), true);
  }
  for (std::size_t block = 0; block < plan.coded.size(); ++block) {
    add_part(coded_factors(plan, static_cast<int>(block), plan.coded[block].num_coefficients()),
             true);
  }
  std::set<std::string> known;
  for (const Part& part : parts_) {
    for (const FactorSpec& factor : part.factors) {
      known.insert(factor.name);
    }
  }
  for (const TensorInfo& tensor : file_.tensors()) {
    const bool is_tuned = tensor.name.starts_with(kTunedPrefix) && !plan.fused.empty();
    KVC_CHECK(known.count(tensor.name) != 0 || is_tuned, "{}: {} belongs to no part of the plan",
              path.string(), tensor.name);
    KVC_CHECK(!is_tuned || tensor.dtype == Dtype::kF32, "{}: {} is {}, expected F32", path.string(),
              tensor.name, dtype_name(tensor.dtype));
  }
}

std::optional<std::int64_t> FactorFile::wide_coefficients(const FactorSpec& matrix) const {
  const TensorInfo* choice =
      matrix.axis == CoefficientAxis::kNone ? nullptr : file_.find(choice_name(matrix.name));
  if (choice == nullptr) {
    return std::nullopt;
  }
  std::int64_t wide = 0;
  std::memcpy(&wide, file_.bytes(*choice).data(), sizeof wide);
  const std::int64_t coefficients = matrix.shape[matrix.axis == CoefficientAxis::kRows ? 0 : 1];
  KVC_CHECK(wide >= 0 && wide <= coefficients,
            "{}: {} is {}, expected 0 to {}; convert the checkpoint again", file_.path().string(),
            choice->name, wide, coefficients);
  return wide;
}

std::vector<FactorFile::Stored> FactorFile::stored(bool coded) const {
  std::vector<Stored> tensors;
  for (const Part& part : parts_) {
    StoredForm form = part.form;
    form.codes = form.codes && coded;
    for (const FactorSpec& factor : part.factors) {
      if (is_stored(factor.use, form)) {
        tensors.push_back({*file_.find(factor.name), factor.use == FactorUse::kCode, factor.axis,
                           wide_coefficients(factor)});
      }
    }
  }
  return tensors;
}

const TensorInfo* FactorFile::tuned(const std::string& tensor) const {
  return file_.find(kTunedPrefix + tensor);
}

at::Tensor FactorFile::load(const std::string& name, at::ScalarType dtype) const {
  const TensorInfo* info = file_.find(name);
  KVC_CHECK(info != nullptr, "{}: no tensor {}", file_.path().string(), name);
  at::Tensor stored = at::empty(info->shape, at::kFloat);
  const auto bytes = file_.bytes(*info);
  std::memcpy(stored.data_ptr(), bytes.data(), bytes.size());
  release_pages(bytes);
  at::Tensor cast = stored.to(dtype);
  KVC_CHECK(cast.isfinite().all().item<bool>(),
            "{}: {} holds values outside {}'s range; use --factor-dtype auto or float32",
            file_.path().string(), name, c10::toString(dtype));
  return cast;
}

void check_factor_dtype(const std::string& name) {
  if (chooses_factor_type(name) || is_integer_factor_type(name)) {
    return;
  }
  try {
    parse_scalar_type(name);
  } catch (const Error&) {
    fail_usage("--factor-dtype {}: expected auto, float32, bfloat16, float16 or int8", name);
  }
}

bool chooses_factor_type(const std::string& name) { return name == "auto"; }
bool is_integer_factor_type(const std::string& name) { return name == "int8"; }

}  // namespace kvc
