#include "export/tensor_sources.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "export/factor_sources.h"
#include "model/weights.h"

namespace kvc {
namespace {

enum class Projection { kKey, kValue };

ProjectionRows rows_of(const ModelConfig& config, int layer, Projection projection) {
  return projection == Projection::kKey ? key_rows(config, layer) : value_rows(config, layer);
}

// Buffers that old files hold and every loader recomputes.
bool is_rope_buffer(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

TensorSource original(const Checkpoint& checkpoint, const std::string& name,
                      std::shared_ptr<Held> held) {
  const TensorInfo& info = checkpoint.info(name);
  return {name, info.dtype, info.shape, [&checkpoint, name, held = std::move(held)] {
            held->release();
            held->mapped = checkpoint.bytes(name);
            return held->mapped;
          }};
}

// In the type of the checkpoint's tensor `name`, which it replaces.
TensorSource tuned_weight(const Checkpoint& checkpoint, const std::string& name,
                          const TensorInfo& tuned, const FactorFile& factors,
                          std::shared_ptr<Held> held) {
  const TensorInfo& info = checkpoint.info(name, tuned.shape);
  const at::ScalarType dtype = scalar_type(info.dtype, name);
  return computed_source(name, dtype, info.shape, std::move(held),
                         [&factors, of = tuned.name, dtype] { return factors.load(of, dtype); });
}

// W' = B A of one projection of one latent layer. [kv_dim, hidden_size] float64
at::Tensor fold(const FactorFile& factors, const KvPlan& plan, int layer, Projection projection) {
  const int index = plan.group_of(layer);
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  const bool is_key = projection == Projection::kKey;
  const std::string part = !group.split_kv ? "" : is_key ? "key." : "value.";
  const at::Tensor latent_proj =
      factors.load(factor_name(index, part + "latent_proj"), at::kDouble);
  at::Tensor reconstruct_proj =
      factors.load(factor_name(index, part + "reconstruct_proj"), at::kFloat);
  if (!group.split_kv) {
    const std::int64_t block = 2 * (layer - group.first_layer) + (is_key ? 0 : 1);
    reconstruct_proj = reconstruct_proj.narrow(0, block * plan.kv_dim(), plan.kv_dim());
  }
  return at::mm(reconstruct_proj.to(at::kDouble), latent_proj);
}

// Rows of a tensor that B A replaces.
struct Target {
  int layer;
  Projection projection;
  ProjectionRows rows;
};

// The tensor of that shape with its targets folded; what lies between them stays as it is.
at::Tensor fold_rows(const Checkpoint& checkpoint, const FactorFile& factors, const KvPlan& plan,
                     const std::vector<Target>& targets, const std::vector<std::int64_t>& shape,
                     at::ScalarType dtype) {
  if (targets.front().rows.is_whole()) {
    return fold(factors, plan, targets.front().layer, targets.front().projection).to(dtype);
  }
  at::Tensor tensor = load_tensor(checkpoint, targets.front().rows.tensor, shape, dtype);
  for (const Target& target : targets) {
    tensor.narrow(0, target.rows.first_row, target.rows.num_rows)
        .copy_(fold(factors, plan, target.layer, target.projection));
  }
  return tensor;
}

}  // namespace

std::vector<std::string> replaced_weights(const ModelConfig& config, const KvPlan& plan) {
  std::vector<int> layers;
  for (const LatentGroup& group : plan.groups) {
    if (group.replaces_projections()) {
      layers.push_back(group.first_layer);
    }
  }
  for (const FusedLayer& layer : plan.fused) {
    layers.push_back(layer.layer);
  }
  std::vector<std::string> names;
  for (const int layer : layers) {
    for (const Projection projection : {Projection::kKey, Projection::kValue}) {
      const ProjectionRows rows = rows_of(config, layer, projection);
      if (rows.is_whole()) {
        names.push_back(rows.tensor);
      }
    }
  }
  return names;
}

std::vector<TensorSource> other_tensors(const Checkpoint& checkpoint,
                                        const std::vector<std::string>& left_out,
                                        const std::shared_ptr<Held>& held) {
  std::vector<TensorSource> sources;
  for (const std::string& name : checkpoint.tensor_names()) {
    if (!is_rope_buffer(name) &&
        std::find(left_out.begin(), left_out.end(), name) == left_out.end()) {
      sources.push_back(original(checkpoint, name, held));
    }
  }
  return sources;
}

std::vector<TensorSource> factored_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                           const KvPlan& plan, const FactorFile& factors,
                                           const std::string& factor_dtype,
                                           const std::filesystem::path& scratch) {
  std::vector<TensorSource> sources;
  const auto held = std::make_shared<Held>();
  const std::vector<std::string> replaced = replaced_weights(config, plan);
  for (const std::string& name : checkpoint.tensor_names()) {
    if (is_rope_buffer(name) ||
        std::find(replaced.begin(), replaced.end(), name) != replaced.end()) {
      continue;
    }
    const TensorInfo* tuned = factors.tuned(name);
    sources.push_back(tuned == nullptr ? original(checkpoint, name, held)
                                       : tuned_weight(checkpoint, name, *tuned, factors, held));
  }
  for (const FactorFile::Stored& factor : factors.stored(chooses_factor_type(factor_dtype))) {
    for (TensorSource& source : factor_sources(factors, factor, factor_dtype, scratch, held)) {
      sources.push_back(std::move(source));
    }
  }
  return sources;
}

std::vector<TensorSource> folded_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                         const KvPlan& plan, const FactorFile& factors) {
  std::map<std::string, std::vector<Target>> folded;  // by tensor
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    for (const Projection projection : {Projection::kKey, Projection::kValue}) {
      if (plan.group_of(layer) >= 0) {
        ProjectionRows rows = rows_of(config, layer, projection);
        std::vector<Target>& targets = folded[rows.tensor];
        targets.push_back({layer, projection, std::move(rows)});
      }
    }
  }
  std::vector<TensorSource> sources;
  const auto held = std::make_shared<Held>();
  for (const std::string& name : checkpoint.tensor_names()) {
    const auto target = folded.find(name);
    if (target == folded.end()) {
      if (!is_rope_buffer(name)) {
        sources.push_back(original(checkpoint, name, held));
      }
      continue;
    }
    const std::vector<std::int64_t> shape = {target->second.front().rows.tensor_rows,
                                             config.hidden_size};
    const at::ScalarType dtype = scalar_type(checkpoint.info(name, shape).dtype, name);
    sources.push_back(
        computed_source(name, dtype, shape, held,
                        [&checkpoint, &factors, &plan, dtype, shape, targets = target->second] {
                          return fold_rows(checkpoint, factors, plan, targets, shape, dtype);
                        }));
  }
  return sources;
}

}  // namespace kvc
