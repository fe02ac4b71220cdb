#include "tests/export/export_fixture.h"

#include <fstream>
#include <iterator>

#include "core/checkpoint.h"
#include "core/safetensors.h"
#include "model/arch.h"
#include "model/factor_specs.h"
#include "model/weights.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {
namespace {

using Shape = std::vector<std::int64_t>;

std::vector<std::pair<std::string, Shape>> factor_shapes(const KvPlan& plan, std::int64_t hidden) {
  std::vector<std::pair<std::string, Shape>> shapes;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const LatentGroup& group = plan.groups[i];
    const std::string prefix = "kvconvert.groups." + std::to_string(i) + ".";
    if (group.split_kv) {
      shapes.push_back({prefix + "key.latent_proj", {group.key_rank, hidden}});
      shapes.push_back({prefix + "key.reconstruct_proj", {plan.kv_dim(), group.key_rank}});
      shapes.push_back({prefix + "value.latent_proj", {group.value_rank, hidden}});
      shapes.push_back({prefix + "value.reconstruct_proj", {plan.kv_dim(), group.value_rank}});
      continue;
    }
    const std::int64_t stacked = 2 * group.num_layers * plan.kv_dim();
    shapes.push_back({prefix + "latent_proj", {group.rank, hidden}});
    shapes.push_back({prefix + "encoder", {group.rank, stacked}});
    shapes.push_back({prefix + "reconstruct_proj", {stacked, group.rank}});
    shapes.push_back({prefix + "merged_reconstruct_proj", {stacked, group.rank}});
  }
  return shapes;
}

}  // namespace

KvPlan ExportFixture::joint_plan() const {
  KvPlan plan = plain_plan(synthetic_.num_layers, synthetic_.num_kv_heads, synthetic_.head_dim);
  plan.method = "commonkv";
  plan.key_norm = find_arch(synthetic_.model_type, "test").qk_norm != QkNorm::kNone;
  for (const int layer : {0, 1, 2}) {
    plan.layers[static_cast<std::size_t>(layer)] = KvSource::kLatent;
  }
  LatentGroup pair, single;
  pair.num_layers = 2;
  pair.rank = 12;
  single.first_layer = 2;
  single.num_layers = 1;
  single.rank = 8;
  plan.groups = {pair, single};
  return plan;
}

KvPlan ExportFixture::split_plan() const {
  KvPlan plan = plain_plan(synthetic_.num_layers, synthetic_.num_kv_heads, synthetic_.head_dim);
  plan.method = "palu";
  plan.compression.rule = MergeRule::kNone;
  plan.compression.unmerged = UnmergedForm::kLatent;
  for (int layer = 0; layer < synthetic_.num_layers; ++layer) {
    plan.layers[static_cast<std::size_t>(layer)] = KvSource::kLatent;
    LatentGroup group;
    group.first_layer = layer;
    group.num_layers = 1;
    group.split_kv = true;
    group.key_rank = 5;
    group.value_rank = 7;
    group.rank = 12;
    plan.groups.push_back(group);
  }
  return plan;
}

void ExportFixture::make(const KvPlan& plan) {
  write_synthetic_checkpoint(checkpoint_, synthetic_);
  write_conversion_of(plan, Checkpoint::open(checkpoint_).hash());
}

void ExportFixture::write_conversion_of(const KvPlan& plan, const std::string& checkpoint_hash) {
  std::filesystem::remove_all(conversion_);
  std::filesystem::create_directory(conversion_);
  std::vector<at::Tensor> tensors;
  std::vector<TensorSource> sources;
  std::uint64_t seed = 1;
  for (const auto& [name, shape] : factor_shapes(plan, synthetic_.hidden_size)) {
    if (name != skip_tensor_) {
      const at::Tensor values = (random_normal(shape, seed++) * scale_).contiguous();
      sources.push_back({name, Dtype::kF32, shape, [values] {
                           return std::span(static_cast<const std::byte*>(values.data_ptr()),
                                            values.nbytes());
                         }});
    }
  }
  for (const auto& [matrix, wide] : wide_) {
    sources.push_back({choice_name(matrix), Dtype::kI64, {1}, [&wide = wide] {
                         return std::as_bytes(std::span(&wide, 1));
                       }});
  }
  write_safetensors(conversion_ / "conversion.safetensors", sources);
  Conversion conversion;
  conversion.plan = plan;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    GroupReport report;
    report.group = static_cast<int>(i);
    report.first_layer = plan.groups[i].first_layer;
    report.num_layers = plan.groups[i].num_layers;
    report.rank = plan.groups[i].rank;
    report.energy_kept = 0.75;
    conversion.report.push_back(report);
  }
  conversion.settings["method"] = plan.method;
  conversion.calibration_hashes = {std::string(64, 'c')};
  conversion.provenance.kind = "conversion";
  conversion.provenance.checkpoint_hash = checkpoint_hash;
  conversion.provenance.tokens_hash = std::string(64, 'd');
  conversion.provenance.options["method"] = plan.method;
  write_conversion(conversion_, conversion);
}

ExportOptions ExportFixture::options(ExportFormat format) const {
  ExportOptions result;
  result.checkpoint = checkpoint_;
  result.conversion = conversion_ / "conversion.h5";
  result.out = out_;
  result.format = format;
  result.factor_dtype = "float32";
  return result;
}

std::string read_all(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream.good()) << file;
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_all(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  ASSERT_TRUE(stream.good()) << file;
}

at::Tensor tensor_of(const std::filesystem::path& directory, const std::string& name) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  return load_tensor(checkpoint, name, checkpoint.info(name).shape, at::kFloat);
}

}  // namespace kvc::testing
