// FusedKV and its relatives: upper layers store nothing and read other layers' keys and values. FusedKV (arXiv
// 2512.03870) weighs two storage layers channel by channel; FusedKV-Lite reads keys of the middle and values of
// the bottom one as they are; YOCO's upper layers read the middle layer's; CLA's odd layers the layer below.
#include "convert/fusion/fusion_conversion.h"
#include "convert/fusion/fusion_plan.h"
#include "convert/methods/methods.h"
#include "core/error.h"

namespace kvc {
namespace {

// Bottom and middle storage layer; one where that is all there is.
std::vector<int> paper_sources(int num_storage) {
  return num_storage == 1 ? std::vector<int>{0} : std::vector<int>{0, num_storage - 1};
}

void apply_fusedkv_preset(ConvertSettings& settings) {
  settings.fusion.form = FusionForm::kChannel;
  settings.fusion.sources = FusionSources::kPaper;
  settings.fusion.head_map = HeadMap::kSame;
  settings.fusion.storage_layers = 0;
}

// What is for latent groups alone.
void fix_fusedkv(ConvertSettings& settings) {
  settings.factor = Factor::kPlain;
  settings.merge = MergeRule::kNone;
  settings.rank_allocation = RankAllocation::kUniform;
  check_ranges(settings.fusion);
}

// Nothing to choose: every factor is one.
void fix_ones(ConvertSettings& settings) {
  fix_fusedkv(settings);
  const FusionSettings& fusion = settings.fusion;
  KVC_CHECK_USAGE(fusion.form == FusionForm::kChannel && fusion.sources == FusionSources::kPaper &&
                      fusion.head_map == HeadMap::kSame,
                  "--method {}: layers read their sources unchanged; --fusion, --pair, --sources "
                  "and --head-map apply to --method fusedkv only",
                  settings.method);
}

KvPlan finish(const ModelConfig& config, const ConvertSettings& settings,
              std::vector<FusedLayer> layers) {
  KvPlan plan = fused_plan(config, settings.fusion, std::move(layers));
  plan.method = settings.method;
  return plan;
}

KvPlan plan_fusedkv(const ModelConfig& config, const ConvertSettings& settings, bool,
                    const std::vector<double>*) {
  const FusionSettings& fusion = settings.fusion;
  const int num_storage = storage_layers(config, fusion);
  return finish(config, settings, upper_layers(config, fusion, [&](int layer) {
                  std::vector<int> sources = paper_sources(num_storage);
                  if (fusion.sources != FusionSources::kPaper) {
                    sources = readable_sources(config, layer, num_storage);
                  }
                  return FusedLayer{
                      .form = fusion.form, .key_sources = sources, .value_sources = sources};
                }));
}

KvPlan plan_lite(const ModelConfig& config, const ConvertSettings& settings, bool,
                 const std::vector<double>*) {
  const int middle = storage_layers(config, settings.fusion) - 1;
  return finish(config, settings, upper_layers(config, settings.fusion, [&](int) {
                  return FusedLayer{.key_sources = {middle}, .value_sources = {0}};
                }));
}

// YOCO and CLA are architectures to train, not to convert to.
void refuse_untrained(const ConvertSettings& settings, bool force) {
  KVC_CHECK(force,
            "--method {}: requires a model that was trained with it; a pretrained model produces "
            "nonsense when its layers read other layers' keys and values. Use --method coded or "
            "commonkv, or --force to convert anyway",
            settings.method);
}

KvPlan plan_yoco(const ModelConfig& config, const ConvertSettings& settings, bool force,
                 const std::vector<double>*) {
  refuse_untrained(settings, force);
  const int middle = storage_layers(config, settings.fusion) - 1;
  return finish(config, settings, upper_layers(config, settings.fusion, [&](int) {
                  return FusedLayer{.key_sources = {middle}, .value_sources = {middle}};
                }));
}

KvPlan plan_cla(const ModelConfig& config, const ConvertSettings& settings, bool force,
                const std::vector<double>*) {
  refuse_untrained(settings, force);
  std::vector<FusedLayer> layers;
  for (int layer = 1; layer < config.num_layers; layer += 2) {
    layers.push_back({.layer = layer, .key_sources = {layer - 1}, .value_sources = {layer - 1}});
  }
  return finish(config, settings, std::move(layers));
}

std::vector<GroupReport> convert_fitted(ConversionJob& job) {
  return convert_fused_layers(job, FusionWeights::kFitted);
}

std::vector<GroupReport> convert_ones(ConversionJob& job) {
  return convert_fused_layers(job, FusionWeights::kOnes);
}

}  // namespace

const Method kFusedKv = {"fusedkv", apply_fusedkv_preset, fix_fusedkv, plan_fusedkv,
                         convert_fitted};
const Method kFusedKvLite = {"fusedkv-lite", apply_fusedkv_preset, fix_ones, plan_lite,
                             convert_ones};
const Method kYoco = {"yoco", apply_fusedkv_preset, fix_ones, plan_yoco, convert_ones};
const Method kCla = {"cla", apply_fusedkv_preset, fix_ones, plan_cla, convert_ones};

}  // namespace kvc
