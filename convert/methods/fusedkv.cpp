// FusedKV and its relatives: upper layers store nothing and read other layers' keys and values. FusedKV (arXiv
// 2512.03870) weighs two storage layers channel by channel; FusedKV-Lite reads keys of the middle and values of
// the bottom one as they are; YOCO's upper layers read the middle layer's; CLA's odd layers the layer below.
#include "convert/fusion/fusion_plan.h"
#include "convert/methods/methods.h"
#include "convert/served_kinds.h"
#include "core/error.h"

namespace kvc {
namespace {

void apply_fusedkv_preset(ConvertSettings& settings) {
  FusionSettings& own = settings.own<FusionSettings>();
  own.form = FusionForm::kChannel;
  own.sources = FusionSources::kPaper;
  own.head_map = HeadMap::kSame;
  own.storage_layers = 0;
}

void fix_fusedkv(ConvertSettings& settings) {
  leave_no_exact_tokens(settings);
  check_fusion_settings(settings.own<FusionSettings>());
}

// Nothing to choose: every factor is one.
void fix_ones(ConvertSettings& settings) {
  fix_fusedkv(settings);
  const FusionSettings& fusion = settings.own<FusionSettings>();
  KVC_CHECK_USAGE(fusion.form == FusionForm::kChannel && fusion.sources == FusionSources::kPaper &&
                      fusion.head_map == HeadMap::kSame,
                  "--method {}: layers read their sources unchanged; --fusion, --pair, --sources "
                  "and --head-map apply to --method fusedkv only",
                  settings.method);
}

const FusionSettings& own(const PlanRequest& request) {
  return request.settings.own<FusionSettings>();
}

// Upper layers that all read the same.
KvPlan read_alike(const PlanRequest& request, int key_source, int value_source) {
  return fused_plan(request, upper_layers(request.config, own(request), [&](int) {
                      return FusedLayer{.key_sources = {key_source},
                                        .value_sources = {value_source}};
                    }));
}

int middle_layer(const PlanRequest& request) {
  return storage_layers(request.config, own(request)) - 1;
}

KvPlan plan_fusedkv(const PlanRequest& request) {
  const FusionSettings& fusion = own(request);
  const int num_storage = storage_layers(request.config, fusion);
  // Bottom and middle storage layer; one where that is all there is.
  const std::vector<int> paper =
      num_storage == 1 ? std::vector{0} : std::vector{0, num_storage - 1};
  return fused_plan(
      request, upper_layers(request.config, fusion, [&](int layer) {
        const std::vector<int> sources = fusion.sources == FusionSources::kPaper
                                             ? paper
                                             : readable_sources(request.config, layer, num_storage);
        return FusedLayer{.form = fusion.form, .key_sources = sources, .value_sources = sources};
      }));
}

KvPlan plan_lite(const PlanRequest& request) {
  return read_alike(request, middle_layer(request), 0);
}

// YOCO and CLA are architectures to train, not to convert to.
void refuse_untrained(const PlanRequest& request) {
  KVC_CHECK(request.force,
            "--method {}: requires a model that was trained with it; a pretrained model produces "
            "nonsense when its layers read other layers' keys and values. Use --method coded or "
            "commonkv, or --force to convert anyway",
            request.settings.method);
}

KvPlan plan_yoco(const PlanRequest& request) {
  refuse_untrained(request);
  return read_alike(request, middle_layer(request), middle_layer(request));
}

KvPlan plan_cla(const PlanRequest& request) {
  refuse_untrained(request);
  std::vector<FusedLayer> layers;
  for (int layer = 1; layer < request.config.num_layers; layer += 2) {
    layers.push_back({.layer = layer, .key_sources = {layer - 1}, .value_sources = {layer - 1}});
  }
  return fused_plan(request, std::move(layers));
}

template <FusionWeights weights>
void convert_with(ConversionJob& job) {
  convert_fused_layers(job, weights);
}

// For factors that are all one, unless the row says otherwise.
Method of_fused_layers(std::string_view name, KvPlan (*make_plan)(const PlanRequest&)) {
  return {.name = name,
          .options = {fusion_options},
          .apply_paper_preset = apply_fusedkv_preset,
          .fix_settings = fix_ones,
          .make_plan = make_plan,
          .convert = convert_with<FusionWeights::kOnes>,
          .fill_table = fill_fusion_table,
          .served = &kServedFused};
}

Method fitted() {
  Method method = of_fused_layers("fusedkv", plan_fusedkv);
  method.fix_settings = fix_fusedkv;
  method.convert = convert_with<FusionWeights::kFitted>;
  return method;
}

}  // namespace

const Method kFusedKv = fitted();
const Method kFusedKvLite = of_fused_layers("fusedkv-lite", plan_lite);
const Method kYoco = of_fused_layers("yoco", plan_yoco);
const Method kCla = of_fused_layers("cla", plan_cla);

}  // namespace kvc
