#include "tests/runtime/factored_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "core/kv_plan_bytes.h"
#include "core/kv_plan_json.h"
#include "core/safetensors.h"
#include "model/fused_kv.h"
#include "model/key_bases.h"
#include "model/weights.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {
namespace {

constexpr double kCodeReach = 4;

struct Factors {
  at::Tensor latent_proj, reconstruct_proj, encoder;
};

Factors factorise(const at::Tensor& stacked, std::int64_t rank) {
  const auto [u, s, vt] = at::linalg_svd(stacked, /*full_matrices=*/false);
  const at::Tensor root = s.narrow(0, 0, rank).sqrt();
  const at::Tensor reconstruct = u.narrow(1, 0, rank) * root;
  return {root.unsqueeze(1) * vt.narrow(0, 0, rank), reconstruct,
          (reconstruct / s.narrow(0, 0, rank)).t()};
}

class Writer {
 public:
  Writer(const std::filesystem::path& source, const KvPlan& plan)
      : checkpoint_(Checkpoint::open(source)), plan_(plan) {}

  void write(const std::filesystem::path& directory) {
    for (const std::string& name : checkpoint_.tensor_names()) {
      if (!is_replaced(name)) {
        add(name, load_tensor(checkpoint_, name, checkpoint_.info(name).shape, at::kFloat));
      }
    }
    for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
      if (plan_.groups[group].basis != LatentBasis::kWeights) {
        add_principal(group);
      } else {
        plan_.groups[group].split_kv ? add_split(group) : add_joint(group);
      }
    }
    for (std::size_t block = 0; block < plan_.coded.size(); ++block) {
      add_coded(block);
    }
    for (const FusedLayer& layer : plan_.fused) {
      add(fused_tensor_name(layer.layer, "key"), fused_weight(plan_, layer, true));
      add(fused_tensor_name(layer.layer, "value"), fused_weight(plan_, layer, false));
    }
    std::filesystem::create_directories(directory);
    Json config = checkpoint_.config();
    const std::string family = config.at("model_type");
    config["model_type"] = "kvconvert_" + family;
    config["kvconvert"] = {{"format", 1}, {"model_type", family}, {"plan", to_json(plan_)}};
    std::ofstream(directory / "config.json") << dump_json(config);
    write_checkpoint_tensors(directory, std::move(tensors_));
  }

 private:
  bool is_replaced(const std::string& name) const {
    const auto matches = [&](const LatentGroup& group) {
      const std::string prefix = fmt::format("model.layers.{}.self_attn.", group.first_layer);
      return group.replaces_projections() &&
             (name == prefix + "k_proj.weight" || name == prefix + "v_proj.weight");
    };
    const auto is_fused = [&](const FusedLayer& layer) {
      const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer.layer);
      return name == prefix + "k_proj.weight" || name == prefix + "v_proj.weight";
    };
    return std::any_of(plan_.groups.begin(), plan_.groups.end(), matches) ||
           std::any_of(plan_.fused.begin(), plan_.fused.end(), is_fused);
  }

  at::Tensor projection(int layer, const char* which) const {
    const std::string name = fmt::format("model.layers.{}.self_attn.{}_proj.weight", layer, which);
    return load_tensor(checkpoint_, name, checkpoint_.info(name).shape, at::kFloat).to(at::kDouble);
  }

  void add_joint(std::size_t group) {
    const LatentGroup& spec = plan_.groups[group];
    std::vector<at::Tensor> rows;
    for (int layer = spec.first_layer; layer < spec.first_layer + spec.num_layers; ++layer) {
      rows.push_back(projection(layer, "k"));
      rows.push_back(projection(layer, "v"));
    }
    const Factors factors = factorise(at::cat(rows), spec.rank);
    const std::string prefix = fmt::format("kvconvert.groups.{}.", group);
    add(prefix + "latent_proj", factors.latent_proj);
    add(prefix + "reconstruct_proj", factors.reconstruct_proj);
    if (plan_.compression.rule == MergeRule::kLs) {
      add(prefix + "encoder", factors.encoder);
    }
  }

  void add_principal(std::size_t group) {
    const LatentGroup& spec = plan_.groups[group];
    if (spec.basis == LatentBasis::kRequest) {
      return;
    }
    const std::int64_t width = spec.num_layers * plan_.kv_dim();
    const std::string prefix = fmt::format("kvconvert.groups.{}.", group);
    const std::int64_t joint = spec.num_layers * grouped_widths(plan_).total();
    add(prefix + "mean", random_normal({joint}, 31 + group));
    const auto add_basis = [&](const std::string& part, std::int64_t channels, std::int64_t rank,
                               std::uint64_t seed) {
      const at::Tensor basis =
          std::get<0>(at::linalg_qr(random_normal({channels, rank}, seed).to(at::kDouble)));
      add(prefix + part + "encoder", basis.t());
      add(prefix + part + "reconstruct_proj", basis);
    };
    if (spec.split_kv) {
      add_basis("key.", width, spec.key_rank, 57 + group);
      add_basis("value.", width, spec.value_rank, 91 + group);
    } else {
      add_basis("", joint, spec.rank, 57 + group);
    }
  }

  void add_split(std::size_t group) {
    const LatentGroup& spec = plan_.groups[group];
    for (const auto& [part, which, rank] :
         {std::tuple("key", "k", spec.key_rank), std::tuple("value", "v", spec.value_rank)}) {
      const Factors factors = factorise(projection(spec.first_layer, which), rank);
      const std::string prefix = fmt::format("kvconvert.groups.{}.{}.", group, part);
      add(prefix + "latent_proj", factors.latent_proj);
      add(prefix + "reconstruct_proj", factors.reconstruct_proj);
    }
  }

  void add_coded(std::size_t block) {
    const CodedBlock& spec = plan_.coded[block];
    const std::int64_t k = spec.num_coefficients();
    const std::int64_t n = coded_channels(plan_, spec);
    const auto seed = static_cast<unsigned>(block) + 1;
    at::Tensor steps = at::empty({k}, at::kFloat);
    std::int64_t first = 0;
    for (int bits = kMaxCodeBits; bits >= 1; --bits) {
      const std::int64_t count = spec.coefficients[static_cast<std::size_t>(bits)];
      steps.narrow(0, first, count).fill_(2 * kCodeReach / (1 << bits));
      first += count;
    }
    const std::string prefix = fmt::format("kvconvert.coded.{}.", block);
    if (spec.bases == 1) {
      const at::Tensor basis = std::get<0>(at::linalg_qr(random_normal({n, n}, seed)));
      add(prefix + "encoder", basis.t().narrow(0, 0, k));
      add(prefix + "decoder", basis.narrow(1, 0, k));
    } else {
      add_bases(prefix, spec, k, seed);
    }
    add(prefix + "mean", 0.1 * random_normal({n}, seed + 100));
    add(prefix + "steps", steps);
    if (codes_first_token(plan_)) {
      add(prefix + "first", random_normal({n}, seed + 200));
    }
  }

  // Coefficients take turns among the bases.
  void add_bases(const std::string& prefix, const CodedBlock& spec, std::int64_t k,
                 std::uint64_t seed) {
    const at::Tensor channels =
        key_basis_channels(read_model_config(checkpoint_), spec.first_layer, spec.bases);
    const std::int64_t n = channels.numel(), width = channels.size(1);
    at::Tensor decoder = at::zeros({n, width, spec.bases});
    for (std::int64_t i = 0; i < spec.bases; ++i) {
      const at::Tensor own = spec.rotated
                                 ? at::eye(width)
                                 : std::get<0>(at::linalg_qr(random_normal(
                                       {width, width}, 100 * seed + static_cast<unsigned>(i))));
      decoder.select(2, i).index_copy_(0, channels[i], own);
    }
    const at::Tensor columns = decoder.view({n, n}).narrow(1, 0, k);
    const SplitTransform split = split_bases({columns.t().contiguous(), columns}, channels);
    add(prefix + "encoder", split.transform.encoder);
    add(prefix + "decoder", split.transform.decoder);
    add(prefix + "basis", split.basis);
  }

  void add(const std::string& name, const at::Tensor& tensor) {
    const at::Tensor data = tensor.to(at::kFloat).contiguous();
    tensors_.push_back(
        {.name = name, .dtype = Dtype::kF32, .shape = data.sizes().vec(), .read = [data] {
           return std::span(static_cast<const std::byte*>(data.const_data_ptr()), data.nbytes());
         }});
  }

  const Checkpoint checkpoint_;
  const KvPlan& plan_;
  std::vector<TensorSource> tensors_;
};

KvPlan empty_plan(const SyntheticCheckpoint& model, const std::string& method) {
  KvPlan plan = plain_plan(model.num_layers, model.num_kv_heads, model.head_dim);
  plan.method = method;
  plan.key_norm = find_arch(model.model_type, "test").qk_norm != QkNorm::kNone;
  plan.layers.assign(plan.layers.size(), KvSource::kLatent);
  return plan;
}

}  // namespace

KvPlan grouped_plan(const SyntheticCheckpoint& model, int layers_per_group, std::int64_t rank,
                    const CompressionSettings& policy) {
  KvPlan plan = empty_plan(model, "commonkv");
  plan.compression = policy;
  for (int first = 0; first < model.num_layers; first += layers_per_group) {
    LatentGroup group;
    group.first_layer = first;
    group.num_layers = std::min(layers_per_group, model.num_layers - first);
    group.rank = rank;
    if (policy.rule != MergeRule::kNone && policy.rule != MergeRule::kLs) {
      group.merge_weights.assign(static_cast<std::size_t>(group.num_layers),
                                 1.0 / group.num_layers);
    }
    plan.groups.push_back(group);
  }
  plan.check();
  return plan;
}

KvPlan split_plan(const SyntheticCheckpoint& model, std::int64_t key_rank,
                  std::int64_t value_rank) {
  KvPlan plan = empty_plan(model, "palu");
  plan.compression.rule = MergeRule::kNone;
  plan.compression.unmerged = UnmergedForm::kLatent;
  plan.compression.sink_tokens = plan.compression.window_tokens = 0;
  plan.compression.block_tokens = 1;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    LatentGroup group;
    group.first_layer = layer;
    group.num_layers = 1;
    group.split_kv = true;
    group.key_rank = key_rank;
    group.value_rank = value_rank;
    group.rank = key_rank + value_rank;
    plan.groups.push_back(group);
  }
  plan.check();
  return plan;
}

KvPlan coded_plan(const SyntheticCheckpoint& model, const CodedPlanOptions& options) {
  KvPlan plan = empty_plan(model, "coded");
  plan.layers.assign(plan.layers.size(), KvSource::kCoded);
  plan.compression.sink_tokens = 2;
  plan.compression.window_tokens = options.codes_prompts ? 0 : 6;
  plan.compression.prefill = options.codes_prompts ? PrefillMode::kCoded : PrefillMode::kExact;
  const int layers = options.scope == CodedScope::kGroup ? 2 : 1;
  const auto add = [&](CodedBlock block, bool by_head) {
    for (int head = 0; head < (by_head ? static_cast<int>(model.num_kv_heads) : 1); ++head) {
      block.head = by_head ? head : -1;
      block.coefficients = {};
      for (std::size_t bits = 0; bits < block.coefficients.size(); ++bits) {
        const std::int64_t count = options.coefficients[bits];
        block.coefficients[bits] = options.bases > 0 ? (count + 1) / 2 : count;
      }
      if (block.num_coefficients() == 0) {
        block.coefficients[8] = coded_channels(plan, block);
      }
      plan.coded.push_back(block);
    }
  };
  for (int first = 0; first < model.num_layers; first += layers) {
    CodedBlock block;
    block.first_layer = first;
    block.num_layers = std::min(layers, model.num_layers - first);
    block.gain = options.gain;
    const bool by_head = options.scope == CodedScope::kHead;
    if (options.bases == 0) {
      add(block, by_head);
      continue;
    }
    CodedBlock keys = block;
    keys.part = CodedParts::kKeys;
    keys.bases = options.bases;
    keys.rotated = options.rotated;
    add(keys, by_head || options.bases > 1);
    block.part = CodedParts::kValues;
    add(block, by_head);
  }
  plan.check();
  return plan;
}

KvPlan principal_plan(const SyntheticCheckpoint& model, int layers_per_group, LatentBasis basis,
                      bool joint, std::int64_t key_rank, std::int64_t value_rank) {
  KvPlan plan = empty_plan(model, "xkv");
  plan.compression.granularity = Granularity::kGroup;
  plan.compression.sink_tokens = 2;
  plan.compression.window_tokens = 6;
  plan.compression.block_tokens = 5;
  for (int first = 0; first < model.num_layers; first += layers_per_group) {
    LatentGroup group;
    group.first_layer = first;
    group.num_layers = std::min(layers_per_group, model.num_layers - first);
    group.basis = basis;
    group.split_kv = !joint;
    const std::int64_t width = group.num_layers * plan.kv_dim();
    const std::int64_t key = key_rank > 0 ? key_rank : width;
    const std::int64_t value = value_rank > 0 ? value_rank : width;
    group.rank = key + value;
    group.key_rank = joint ? 0 : key;
    group.value_rank = joint ? 0 : value;
    plan.groups.push_back(group);
  }
  if (basis == LatentBasis::kRequest) {
    plan.request = RequestSettings{};
  }
  plan.check();
  return plan;
}

KvPlan fused_upper_plan(const SyntheticCheckpoint& model, FusionForm form, int num_sources) {
  KvPlan plan = plain_plan(model.num_layers, model.num_kv_heads, model.head_dim);
  plan.method = "fusedkv";
  plan.key_norm = find_arch(model.model_type, "test").qk_norm != QkNorm::kNone;
  const int num_storage = (model.num_layers + 1) / 2;
  const std::vector<int> both{0, num_storage - 1};
  for (int layer = num_storage; layer < model.num_layers; ++layer) {
    plan.layers[static_cast<std::size_t>(layer)] = KvSource::kFused;
    plan.fused.push_back(
        {.layer = layer,
         .form = form,
         .key_sources = num_sources == 2 ? both : std::vector<int>{num_storage - 1},
         .value_sources = num_sources == 2 ? both : std::vector<int>{0}});
  }
  plan.check();
  return plan;
}

at::Tensor fused_weight(const KvPlan& plan, const FusedLayer& layer, bool key) {
  const std::vector<std::int64_t> shape = fused_shape(plan, layer, key);
  if (layer.form == FusionForm::kFull) {
    return testing::random_normal(
               shape, 50 + static_cast<std::uint64_t>(2 * layer.layer + (key ? 1 : 0))) /
           std::sqrt(static_cast<double>(shape[1]));
  }
  const bool is_complex = key && layer.form == FusionForm::kComplex;
  const at::Tensor pairs =
      testing::random_normal({shape[0], is_complex ? 2 : 1, plan.kv_dim() / 2},
                             50 + static_cast<std::uint64_t>(2 * layer.layer + (key ? 1 : 0)));
  if (is_complex) {
    return pairs;
  }
  const at::Tensor by_head = pairs.view({shape[0], plan.num_kv_heads, plan.head_dim / 2});
  return at::cat({by_head, by_head}, -1).reshape(shape);
}

KvPlan paired_plan(const SyntheticCheckpoint& model, double retained) {
  KvPlan plan = plain_plan(model.num_layers, model.num_kv_heads, model.head_dim);
  plan.method = "minicache";
  plan.key_norm = find_arch(model.model_type, "test").qk_norm != QkNorm::kNone;
  plan.layers[2] = plan.layers[3] = KvSource::kPaired;
  plan.paired = PairedLayers{.first_layers = {2}, .retained = retained};
  plan.check();
  return plan;
}

void write_factored_checkpoint(const std::filesystem::path& directory,
                               const SyntheticCheckpoint& model, const KvPlan& plan) {
  const TemporaryDirectory source;
  write_synthetic_checkpoint(source.path(), model);
  Writer(source.path(), plan).write(directory);
}

}  // namespace kvc::testing
