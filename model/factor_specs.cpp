#include "model/factor_specs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/kv_plan.h"
#include "core/kv_plan_bytes.h"
#include "model/fused_kv.h"

namespace kvc {

bool FactorSpec::has(const std::vector<std::int64_t>& other) const {
  return std::equal(shape.begin(), shape.end(), other.begin(), other.end(),
                    [](std::int64_t a, std::int64_t b) { return a == kAnySize || a == b; });
}

std::string factor_name(int group, const std::string& name) {
  return fmt::format("kvconvert.groups.{}.{}", group, name);
}

std::string choice_name(const std::string& matrix) { return matrix + ".wide"; }

namespace {

// A matrix, and its choice.
void add_matrix(std::vector<FactorSpec>& specs, const std::string& name,
                std::vector<std::int64_t> shape, CoefficientAxis axis, FactorUse use) {
  specs.push_back({name, std::move(shape), use, Dtype::kF32, axis});
  specs.push_back({choice_name(name), {1}, FactorUse::kChoice, Dtype::kI64});
}

}  // namespace

std::vector<FactorSpec> group_factors(const KvPlan& plan, int index, std::int64_t hidden_size) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  const std::int64_t kv_dim = plan.kv_dim(),
                     joint = group.num_layers * grouped_widths(plan).total();
  std::vector<FactorSpec> specs;
  const auto add_encoder = [&](const std::string& name, std::int64_t rank, std::int64_t channels,
                               FactorUse use = FactorUse::kAlways) {
    add_matrix(specs, factor_name(index, name), {rank, channels}, CoefficientAxis::kRows, use);
  };
  const auto add_decoder = [&](const std::string& name, std::int64_t channels, std::int64_t rank,
                               FactorUse use = FactorUse::kAlways) {
    add_matrix(specs, factor_name(index, name), {channels, rank}, CoefficientAxis::kColumns, use);
  };
  if (group.basis == LatentBasis::kRequest) {
    return specs;
  }
  if (group.basis == LatentBasis::kCalibrated) {
    specs.push_back({factor_name(index, "mean"), {joint}});
    const auto add_basis = [&](const std::string& part, std::int64_t rank, std::int64_t channels) {
      add_encoder(part + "encoder", rank, channels);
      add_decoder(part + "reconstruct_proj", channels, rank);
    };
    if (group.split_kv) {
      add_basis("key.", group.key_rank, group.num_layers * kv_dim);
      add_basis("value.", group.value_rank, group.num_layers * kv_dim);
    } else {
      add_basis("", group.rank, joint);
    }
  } else if (group.split_kv) {
    add_encoder("key.latent_proj", group.key_rank, hidden_size);
    add_decoder("key.reconstruct_proj", kv_dim, group.key_rank);
    add_encoder("value.latent_proj", group.value_rank, hidden_size);
    add_decoder("value.reconstruct_proj", kv_dim, group.value_rank);
  } else {
    const std::int64_t stacked = 2 * group.num_layers * kv_dim;
    add_encoder("latent_proj", group.rank, hidden_size, FactorUse::kLatents);
    add_decoder("reconstruct_proj", stacked, group.rank, FactorUse::kUnrefitted);
    add_decoder("merged_reconstruct_proj", stacked, group.rank, FactorUse::kRefitted);
    if (plan.compression.rule == MergeRule::kLs) {
      add_encoder("encoder", group.rank, stacked);
    }
  }
  return specs;
}

std::vector<FactorSpec> fused_factors(const KvPlan& plan, const FusedLayer& layer) {
  return {{fused_tensor_name(layer.layer, "key"), fused_shape(plan, layer, true)},
          {fused_tensor_name(layer.layer, "value"), fused_shape(plan, layer, false)}};
}

std::vector<FactorSpec> coded_factors(const KvPlan& plan, int block, std::int64_t coefficients) {
  const CodedBlock& spec = plan.coded[static_cast<std::size_t>(block)];
  const std::int64_t n = coded_channels(plan, spec), width = n / spec.bases;
  const std::string prefix = fmt::format("kvconvert.coded.{}.", block);
  std::vector<FactorSpec> specs = {{prefix + "mean", {n}}, {prefix + "steps", {coefficients}}};
  add_matrix(specs, prefix + "encoder", {coefficients, width}, CoefficientAxis::kRows,
             FactorUse::kExact);
  add_matrix(specs, prefix + "decoder", {width, coefficients}, CoefficientAxis::kColumns,
             FactorUse::kExact);
  if (codes_first_token(plan)) {
    specs.push_back({prefix + "first", {n}});
  }
  if (spec.bases > 1) {
    specs.push_back({prefix + "basis", {coefficients}});
    return specs;
  }
  for (const BasisCodeSpec& code : basis_code_specs(n, coefficients)) {
    specs.push_back({prefix + code.name, code.shape, FactorUse::kCode, code.dtype});
  }
  return specs;
}

bool is_stored(FactorUse use, const StoredForm& form) {
  switch (use) {
    case FactorUse::kLatents:
      return form.latents;
    case FactorUse::kUnrefitted:
      return form.latents || !form.refitted;
    case FactorUse::kRefitted:
      return form.refitted;
    case FactorUse::kExact:
      return !form.codes;
    case FactorUse::kCode:
      return form.codes;
    case FactorUse::kChoice:
      return false;
    case FactorUse::kAlways:
      break;
  }
  return true;
}

at::Tensor load_factor(const Checkpoint& checkpoint, const std::vector<FactorSpec>& specs,
                       const std::string& name, at::ScalarType dtype) {
  const auto spec = std::find_if(specs.begin(), specs.end(),
                                 [&](const FactorSpec& other) { return other.name == name; });
  KVC_CHECK(spec != specs.end(), "{}: the plan has no such tensor", name);
  return load_coefficients(checkpoint, name, spec->shape, spec->axis, dtype);
}

}  // namespace kvc
