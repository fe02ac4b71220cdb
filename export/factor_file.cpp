#include "export/factor_file.h"

#include <algorithm>
#include <cstring>
#include <map>

#include <fmt/ranges.h>

#include "core/conversion_file.h"
#include "core/error.h"
#include "core/kv_plan.h"
#include "core/mapped_file.h"
#include "model/basis_codes.h"
#include "model/fused_kv.h"

namespace kvc {
namespace {

constexpr std::int64_t kAny = -1;  // columns that the plan does not know
constexpr const char* kCodedPrefix = "kvconvert.coded.";

struct FactorSpec {
  std::vector<std::int64_t> shape;
  bool required = true;
  Dtype dtype = Dtype::kF32;

  bool has(const std::vector<std::int64_t>& other) const {
    return std::equal(shape.begin(), shape.end(), other.begin(), other.end(),
                      [](std::int64_t a, std::int64_t b) { return a == kAny || a == b; });
  }
};
using FactorSpecs = std::map<std::string, FactorSpec>;

void add_split_group(FactorSpecs& specs, const KvPlan& plan, int index, std::int64_t hidden_size) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  const std::int64_t kv_dim = plan.kv_dim();
  specs[factor_name(index, "key.latent_proj")] = {{group.key_rank, hidden_size}};
  specs[factor_name(index, "key.reconstruct_proj")] = {{kv_dim, group.key_rank}};
  specs[factor_name(index, "value.latent_proj")] = {{group.value_rank, hidden_size}};
  specs[factor_name(index, "value.reconstruct_proj")] = {{kv_dim, group.value_rank}};
}

void add_joint_group(FactorSpecs& specs, const KvPlan& plan, int index, std::int64_t hidden_size) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  const std::int64_t stacked = 2 * group.num_layers * plan.kv_dim();
  specs[factor_name(index, "latent_proj")] = {{group.rank, hidden_size}};
  specs[factor_name(index, "reconstruct_proj")] = {{stacked, group.rank}};
  specs[factor_name(index, "merged_reconstruct_proj")] = {{stacked, group.rank}, false};
  if (plan.policy.rule == MergeRule::kLs) {
    specs[factor_name(index, "encoder")] = {{group.rank, stacked}};
  }
}

// Principal directions; those of requests are in no file.
void add_principal_group(FactorSpecs& specs, const KvPlan& plan, int index) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  if (group.basis == LatentBasis::kRequest) {
    return;
  }
  const std::int64_t width = group.num_layers * plan.kv_dim();
  const std::int64_t joint = group.num_layers * grouped_widths(plan).total();
  const auto add = [&](const std::string& prefix, std::int64_t rank, std::int64_t channels) {
    specs[factor_name(index, prefix + "encoder")] = {{rank, channels}};
    specs[factor_name(index, prefix + "reconstruct_proj")] = {{channels, rank}};
  };
  specs[factor_name(index, "mean")] = {{joint}};
  if (group.split_kv) {
    add("key.", group.key_rank, width);
    add("value.", group.value_rank, width);
  } else {
    add("", group.rank, joint);
  }
}

void add_coded_block(FactorSpecs& specs, const KvPlan& plan, int index) {
  const CodedBlock& block = plan.coded[static_cast<std::size_t>(index)];
  const std::int64_t width = block.head < 0 ? plan.kv_dim() : plan.head_dim;
  const std::int64_t channels = 2 * block.num_layers * width;
  const std::int64_t coefficients = block.num_coefficients();
  specs[coded_name(index, "encoder")] = {{coefficients, channels}};
  specs[coded_name(index, "decoder")] = {{channels, coefficients}};
  specs[coded_name(index, "mean")] = {{channels}};
  specs[coded_name(index, "steps")] = {{coefficients}};
  const std::int64_t columns = decoder_columns(channels, coefficients);
  specs[coded_name(index, "decoder_codes")] = {{channels, columns}, false, Dtype::kI8};
  specs[coded_name(index, "decoder_low")] = {{channels, kAny}, false, Dtype::kI8};
  specs[coded_name(index, "decoder_scale")] = {{columns}, false};
  specs[coded_name(index, "channel_scale")] = {{channels}, false};
  if (stores_encoder(channels, coefficients)) {
    specs[coded_name(index, "encoder_codes")] = {{coefficients, channels}, false, Dtype::kI8};
  }
}

FactorSpecs factor_specs(const KvPlan& plan, std::int64_t hidden_size) {
  FactorSpecs specs;
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    const LatentGroup& spec = plan.groups[static_cast<std::size_t>(group)];
    if (spec.basis != LatentBasis::kWeights) {
      add_principal_group(specs, plan, group);
    } else if (spec.split_kv) {
      add_split_group(specs, plan, group, hidden_size);
    } else {
      add_joint_group(specs, plan, group, hidden_size);
    }
  }
  for (const FusedLayer& layer : plan.fused) {
    specs[fused_tensor_name(layer.layer, "key")] = {fused_shape(plan, layer, true)};
    specs[fused_tensor_name(layer.layer, "value")] = {fused_shape(plan, layer, false)};
  }
  for (int block = 0; block < static_cast<int>(plan.coded.size()); ++block) {
    add_coded_block(specs, plan, block);
  }
  return specs;
}

}  // namespace

bool is_code(const std::string& name) {
  return name.starts_with(kCodedPrefix) && is_basis_code(name.substr(name.rfind('.') + 1));
}

bool has_codes(const FactorFile& factors, const std::string& name) {
  const std::size_t part = name.rfind('.') + 1;
  const std::string_view of = std::string_view(name).substr(part);
  return name.starts_with(kCodedPrefix) && (of == "encoder" || of == "decoder") &&
         factors.contains(basis_code_name(name.substr(0, part)));
}

bool is_tuned(const std::string& name) { return name.starts_with(kTunedPrefix); }

std::string factor_name(int group, const std::string& name) {
  return fmt::format("kvconvert.groups.{}.{}", group, name);
}

std::string coded_name(int block, const std::string& name) {
  return fmt::format("kvconvert.coded.{}.{}", block, name);
}

FactorFile::FactorFile(const std::filesystem::path& path, const KvPlan& plan,
                       std::int64_t hidden_size)
    : file_(SafetensorsFile::open(path)) {
  const FactorSpecs specs = factor_specs(plan, hidden_size);
  for (const auto& [name, spec] : specs) {
    const TensorInfo* found = file_.find(name);
    KVC_CHECK(found != nullptr || !spec.required, "{}: {} is missing; convert the checkpoint again",
              path.string(), name);
    if (found == nullptr) {
      continue;
    }
    KVC_CHECK(found->dtype == spec.dtype, "{}: {} is {}, expected {}", path.string(), name,
              dtype_name(found->dtype), dtype_name(spec.dtype));
    KVC_CHECK(spec.has(found->shape), "{}: {} has shape [{}], the plan needs [{}]", path.string(),
              name, fmt::join(found->shape, ", "), fmt::join(spec.shape, ", "));
  }
  for (const TensorInfo& tensor : file_.tensors()) {
    const bool tuned = is_tuned(tensor.name) && !plan.fused.empty();
    KVC_CHECK(specs.count(tensor.name) != 0 || tuned, "{}: {} belongs to no part of the plan",
              path.string(), tensor.name);
    KVC_CHECK(!tuned || tensor.dtype == Dtype::kF32, "{}: {} is {}, expected F32", path.string(),
              tensor.name, dtype_name(tensor.dtype));
  }
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

}  // namespace kvc
