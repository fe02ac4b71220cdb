// xKV (arXiv 2503.18893): keys and values of adjacent layers share principal directions, those of each
// request (xkv), or calibrated ones, for keys and values apart (xkv-static) or together (pca).
#include "convert/latent/latent_plan.h"
#include "convert/methods/methods.h"
#include "convert/principal/principal_conversion.h"
#include "convert/principal/principal_plan.h"
#include "core/error.h"

namespace kvc {
namespace {

void check_allocation(const ConvertSettings& settings) {
  KVC_CHECK_USAGE(settings.rank_allocation != RankAllocation::kFisher,
                  "--rank-alloc fisher: --method {} shares ranks by energy; use uniform or energy",
                  settings.method);
}

// Keys and values apart, 1 : 1.5, 96 and 144 directions a layer, of all prompt tokens.
void apply_xkv_preset(ConvertSettings& settings) {
  settings.layers_per_group = 4;
  settings.joint = false;
  settings.key_rank = 96;
  settings.value_rank = 144;
  settings.rank_multiple = 1;
  settings.sink_tokens = 0;
  settings.window_tokens = 0;
}

void fix_xkv(ConvertSettings& settings) {
  fix_principal_settings(settings);
  KVC_CHECK_USAGE(settings.rank_allocation == RankAllocation::kUniform,
                  "--rank-alloc: --method xkv finds its directions at run time; use uniform");
  KVC_CHECK_USAGE(settings.recompress_every == 0 || settings.later != LaterTokens::kExact,
                  "--recompress-every requires --later project or new-segment, because generated "
                  "tokens are treated like a later turn");
}

void fix_static(ConvertSettings& settings) {
  fix_principal_settings(settings);
  settings.cache_metric = settings.cache_metric.value_or(CacheMetric::kNone);
  check_allocation(settings);
}

void fix_pca(ConvertSettings& settings) {
  fix_static(settings);
  settings.joint = true;
  settings.rank_allocation = RankAllocation::kEnergy;
}

KvPlan request_plan(const ModelConfig& config, const ConvertSettings& settings, bool force,
                    const std::vector<double>*) {
  return make_principal_plan(config, settings, LatentBasis::kRequest, force);
}

KvPlan calibrated_plan(const ModelConfig& config, const ConvertSettings& settings, bool force,
                       const std::vector<double>*) {
  return make_principal_plan(config, settings, LatentBasis::kCalibrated, force);
}

double least_request_ratio(const ModelConfig& config, const ConvertSettings& settings) {
  return least_principal_kept_ratio(config, settings, LatentBasis::kRequest);
}

double least_calibrated_ratio(const ModelConfig& config, const ConvertSettings& settings) {
  return least_principal_kept_ratio(config, settings, LatentBasis::kCalibrated);
}

StatisticsNeeds calibrated_needs(const ModelConfig&, const ConvertSettings& settings) {
  StatisticsNeeds needs;
  needs.joint_layers = settings.layers_per_group;
  needs.gradient_metric = needs_gradient(*settings.cache_metric);
  needs.attention_metric = needs_attention(*settings.cache_metric);
  needs.least_tokens = 1;
  return needs;
}

}  // namespace

const Method kXkv = {.name = "xkv",
                     .apply_paper_preset = apply_xkv_preset,
                     .fix_settings = fix_xkv,
                     .make_plan = request_plan,
                     .convert = report_request_groups,
                     .exact_tokens = latent_exact_tokens,
                     .least_kept_ratio = least_request_ratio,
                     .takes_own_latents = true};
const Method kXkvStatic = {.name = "xkv-static",
                           .apply_paper_preset = apply_xkv_preset,
                           .fix_settings = fix_static,
                           .make_plan = calibrated_plan,
                           .convert = convert_principal_groups,
                           .needs = calibrated_needs,
                           .exact_tokens = latent_exact_tokens,
                           .least_kept_ratio = least_calibrated_ratio,
                           .takes_own_latents = true};
const Method kPca = {.name = "pca",
                     .apply_paper_preset = apply_xkv_preset,
                     .fix_settings = fix_pca,
                     .make_plan = calibrated_plan,
                     .convert = convert_principal_groups,
                     .needs = calibrated_needs,
                     .exact_tokens = latent_exact_tokens,
                     .least_kept_ratio = least_calibrated_ratio};

}  // namespace kvc
