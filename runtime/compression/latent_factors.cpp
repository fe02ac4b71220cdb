#include "runtime/compression/latent_factors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/kv_plan.h"
#include "model/factor_specs.h"
#include "model/tensor_memory.h"
#include "runtime/compression/request_basis.h"

namespace kvc {
namespace {

std::vector<Reconstruction> split_layers(const at::Tensor& stacked, int num_layers,
                                         const KvWidths& widths) {
  std::vector<Reconstruction> layers;
  for (int index = 0; index < num_layers; ++index) {
    const at::Tensor layer = stacked.narrow(0, index * widths.total(), widths.total());
    layers.push_back({layer.narrow(0, 0, widths.key), layer.narrow(0, widths.key, widths.value)});
  }
  return layers;
}

class GroupLoader {
 public:
  GroupLoader(const Checkpoint& checkpoint, const KvPlan& plan, int group, std::int64_t hidden_size,
              at::ScalarType dtype)
      : checkpoint_(checkpoint),
        plan_(plan),
        group_(group),
        spec_(plan.groups[static_cast<std::size_t>(group)]),
        factors_(group_factors(plan, group, hidden_size)),
        dtype_(dtype) {}

  GroupFactors load_split() const {
    GroupFactors factors;
    factors.key_rank = spec_.key_rank;
    factors.value_rank = spec_.value_rank;
    factors.latent_proj =
        at::cat({load("key.latent_proj", dtype_), load("value.latent_proj", dtype_)});
    factors.layers = {
        {load("key.reconstruct_proj", dtype_), load("value.reconstruct_proj", dtype_)}};
    return factors;
  }

  // A request's basis has known widths only.
  GroupFactors load_principal() const {
    GroupFactors factors;
    factors.key_rank = spec_.key_width();
    factors.value_rank = spec_.value_width();
    if (spec_.basis == LatentBasis::kRequest) {
      return factors;
    }
    const KvWidths widths = grouped_widths(plan_);
    const at::Tensor mean = load("mean", at::kFloat);
    Blocks blocks = spec_.split_kv ? split_blocks() : joint_blocks();
    at::Tensor key_latent = at::zeros({factors.key_rank}, at::kFloat);
    at::Tensor value_latent = at::zeros({factors.value_rank}, at::kFloat);
    for (int index = 0; index < spec_.num_layers; ++index) {
      const auto i = static_cast<std::size_t>(index);
      const at::Tensor own = mean.narrow(0, index * widths.total(), widths.total());
      const at::Tensor key_mean = own.narrow(0, 0, widths.key);
      const at::Tensor value_mean = own.narrow(0, widths.key, widths.value);
      key_latent += at::mv(blocks.encoders[i].key, key_mean);
      value_latent += at::mv(blocks.encoders[i].value, value_mean);
      blocks.decoders[i].is_principal = true;
      blocks.decoders[i].key_mean = key_mean.to(dtype_);
      blocks.decoders[i].value_mean = value_mean.to(dtype_);
    }
    factors.mean_latent =
        spec_.split_kv ? at::cat({key_latent, value_latent}) : key_latent + value_latent;
    factors.encoders = std::move(blocks.encoders);
    factors.merged_layers = std::move(blocks.decoders);
    return factors;
  }

  GroupFactors load_joint() const {
    GroupFactors factors;
    factors.key_rank = factors.value_rank = spec_.rank;
    if (needs_latents(plan_, group_)) {
      factors.latent_proj = load("latent_proj", dtype_);
    }
    if (plan_.compression.rule == MergeRule::kLs) {
      factors.encoder = load("encoder", at::kFloat);
    }
    const bool merges = plan_.compression.rule != MergeRule::kNone;
    const bool refitted =
        merges && checkpoint_.contains(factor_name(group_, "merged_reconstruct_proj"));
    if (needs_latents(plan_, group_) || !refitted) {
      factors.layers =
          split_layers(load("reconstruct_proj", dtype_), spec_.num_layers, grouped_widths(plan_));
    }
    if (merges) {
      factors.merged_layers = refitted ? split_layers(load("merged_reconstruct_proj", dtype_),
                                                      spec_.num_layers, grouped_widths(plan_))
                                       : factors.layers;
      for (Reconstruction& layer : factors.merged_layers) {
        layer.kept = kept_channels(layer.key);
      }
    }
    return factors;
  }

 private:
  struct Blocks {
    std::vector<LayerEncoder> encoders;
    std::vector<Reconstruction> decoders;
  };

  Blocks joint_blocks() const {
    const KvWidths widths = grouped_widths(plan_);
    return {split_encoders(load("encoder", at::kFloat), spec_.num_layers, widths),
            split_layers(load("reconstruct_proj", dtype_), spec_.num_layers, widths)};
  }

  Blocks split_blocks() const {
    const std::int64_t kv_dim = plan_.kv_dim();
    const at::Tensor key_encoder = load("key.encoder", at::kFloat);
    const at::Tensor value_encoder = load("value.encoder", at::kFloat);
    const at::Tensor key = load("key.reconstruct_proj", dtype_);
    const at::Tensor value = load("value.reconstruct_proj", dtype_);
    Blocks blocks;
    for (int index = 0; index < spec_.num_layers; ++index) {
      const std::int64_t first = index * kv_dim;
      blocks.encoders.push_back({key_encoder.narrow(1, first, kv_dim).contiguous(),
                                 value_encoder.narrow(1, first, kv_dim).contiguous()});
      blocks.decoders.push_back({key.narrow(0, first, kv_dim), value.narrow(0, first, kv_dim)});
    }
    return blocks;
  }

  at::Tensor load(const char* tensor, at::ScalarType dtype) const {
    return load_factor(checkpoint_, factors_, factor_name(group_, tensor), dtype);
  }

  const Checkpoint& checkpoint_;
  const KvPlan& plan_;
  const int group_;
  const LatentGroup& spec_;
  const std::vector<FactorSpec> factors_;
  const at::ScalarType dtype_;
};

std::int64_t bytes_of(const std::vector<Reconstruction>& layers) {
  std::int64_t bytes = 0;
  for (const Reconstruction& layer : layers) {
    bytes += static_cast<std::int64_t>(layer.key.nbytes() + layer.value.nbytes());
    for (const at::Tensor& kept : {layer.kept.channels, layer.kept.numbers, layer.kept.others,
                                   layer.kept.proj, layer.key_mean, layer.value_mean}) {
      bytes += tensor_bytes(kept);
    }
  }
  return bytes;
}

bool share_memory(const std::vector<Reconstruction>& a, const std::vector<Reconstruction>& b) {
  return !a.empty() && !b.empty() && a.front().key.data_ptr() == b.front().key.data_ptr();
}

}  // namespace

std::int64_t LatentFactors::bytes() const {
  std::int64_t total = 0;
  for (const GroupFactors& group : groups) {
    for (const at::Tensor& tensor : {group.latent_proj, group.encoder, group.mean_latent}) {
      total += tensor_bytes(tensor);
    }
    for (const LayerEncoder& encoder : group.encoders) {
      total += static_cast<std::int64_t>(encoder.key.nbytes() + encoder.value.nbytes());
    }
    total += bytes_of(group.layers);
    total += share_memory(group.layers, group.merged_layers) ? 0 : bytes_of(group.merged_layers);
  }
  return total;
}

LatentFactors load_latent_factors(const Checkpoint& checkpoint, const KvPlan& plan,
                                  std::int64_t hidden_size, at::ScalarType dtype) {
  LatentFactors factors;
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    const GroupLoader loader(checkpoint, plan, group, hidden_size, dtype);
    const LatentGroup& spec = plan.groups[static_cast<std::size_t>(group)];
    factors.groups.push_back(spec.basis != LatentBasis::kWeights ? loader.load_principal()
                             : spec.split_kv                     ? loader.load_split()
                                                                 : loader.load_joint());
  }
  return factors;
}

}  // namespace kvc
