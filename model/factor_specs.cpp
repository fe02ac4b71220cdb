#include "model/factor_specs.h"

#include <fmt/format.h>

#include <algorithm>

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

std::vector<FactorSpec> group_factors(const KvPlan& plan, int index, std::int64_t hidden_size) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  const std::int64_t kv_dim = plan.kv_dim(),
                     joint = group.num_layers * grouped_widths(plan).total();
  std::vector<FactorSpec> specs;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns,
                       FactorUse use = FactorUse::kAlways) {
    specs.push_back({factor_name(index, name), {rows, columns}, use});
  };
  if (group.basis == LatentBasis::kRequest) {
    return specs;
  }
  if (group.basis == LatentBasis::kCalibrated) {
    specs.push_back({factor_name(index, "mean"), {joint}});
    const auto add_basis = [&](const std::string& part, std::int64_t rank, std::int64_t channels) {
      add(part + "encoder", rank, channels);
      add(part + "reconstruct_proj", channels, rank);
    };
    if (group.split_kv) {
      add_basis("key.", group.key_rank, group.num_layers * kv_dim);
      add_basis("value.", group.value_rank, group.num_layers * kv_dim);
    } else {
      add_basis("", group.rank, joint);
    }
  } else if (group.split_kv) {
    add("key.latent_proj", group.key_rank, hidden_size);
    add("key.reconstruct_proj", kv_dim, group.key_rank);
    add("value.latent_proj", group.value_rank, hidden_size);
    add("value.reconstruct_proj", kv_dim, group.value_rank);
  } else {
    const std::int64_t stacked = 2 * group.num_layers * kv_dim;
    add("latent_proj", group.rank, hidden_size, FactorUse::kLatents);
    add("reconstruct_proj", stacked, group.rank, FactorUse::kUnrefitted);
    add("merged_reconstruct_proj", stacked, group.rank, FactorUse::kRefitted);
    if (plan.compression.rule == MergeRule::kLs) {
      add("encoder", group.rank, stacked);
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
  std::vector<FactorSpec> specs = {{prefix + "encoder", {coefficients, width}, FactorUse::kExact},
                                   {prefix + "decoder", {width, coefficients}, FactorUse::kExact},
                                   {prefix + "mean", {n}},
                                   {prefix + "steps", {coefficients}}};
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
    case FactorUse::kAlways:
      break;
  }
  return true;
}

}  // namespace kvc
