// xKV (arXiv 2503.18893): keys and values of adjacent layers share principal directions, those of each
// request (xkv), or calibrated ones, for keys and values apart (xkv-static) or together (pca).
#include <cmath>

#include "convert/latent/latent_plan.h"
#include "convert/principal/principal_plan.h"
#include "convert/served_kinds.h"
#include "core/error.h"

namespace kvc {

Options principal_options(ConvertSettings& settings) {
  PrincipalSettings& own = settings.own<PrincipalSettings>();
  Options options;
  options.add("--joint", "joint", own.joint,
              "xkv, xkv-static: one latent for keys and values (pca always)");
  options.add("--value-ratio", "value_ratio", own.value_ratio,
              "xkv, xkv-static: value directions per key direction", "a positive number",
              [](double ratio) { return std::isfinite(ratio) && ratio > 0; });
  options.add("--key-rank", "key_rank", own.key_rank,
              "Key directions per layer (0: from --kept-ratio)");
  options.add("--value-rank", "value_rank", own.value_rank,
              "Value directions per layer (0: from --kept-ratio)");
  options.add("--later", "later", own.later, parse_later_tokens,
              "xkv: later turns: exact (default), project (on the first turn's directions) or "
              "new-segment (their own)");
  add_tokens(
      options, "--recompress-every", "recompress_every", own.recompress_every, 0,
      "xkv: compress generated tokens like a later turn, this many at a time (0: they stay exact)");
  options.add("--solver", "solver", own.solver, parse_basis_solver,
              "xkv: how directions are found: eigh (default) or subspace (iteration)");
  return options;
}

namespace {

void check_ranks(const ConvertSettings& settings) {
  const PrincipalSettings& own = settings.own<PrincipalSettings>();
  KVC_CHECK_USAGE(
      own.key_rank >= 0 && own.value_rank >= 0 && (own.key_rank == 0) == (own.value_rank == 0),
      "--key-rank {} --value-rank {}: expected two positive numbers, or none", own.key_rank,
      own.value_rank);
}

// Keys and values apart, 1 : 1.5, 96 and 144 directions a layer, of all prompt tokens.
void apply_xkv_preset(ConvertSettings& settings) {
  PrincipalSettings& own = settings.own<PrincipalSettings>();
  own.joint = false;
  own.key_rank = 96;
  own.value_rank = 144;
  settings.own<RankSettings>().multiple = 1;
  settings.layers_per_group = 4;
  settings.sink_tokens = 0;
  settings.window_tokens = 0;
}

void fix_xkv(ConvertSettings& settings) {
  settings.prefill = PrefillMode::kExact;
  const PrincipalSettings& own = settings.own<PrincipalSettings>();
  KVC_CHECK_USAGE(settings.own<RankSettings>().allocation == RankAllocation::kUniform,
                  "--rank-alloc: --method xkv finds its directions at run time; use uniform");
  KVC_CHECK_USAGE(own.recompress_every == 0 || own.later != LaterTokens::kExact,
                  "--recompress-every requires --later project or new-segment, because generated "
                  "tokens are treated like a later turn");
  check_ranks(settings);
}

void fix_static(ConvertSettings& settings) {
  const PrincipalSettings of_requests;
  PrincipalSettings& own = settings.own<PrincipalSettings>();
  own.later = of_requests.later;
  own.recompress_every = of_requests.recompress_every;
  own.solver = of_requests.solver;
  settings.prefill = PrefillMode::kExact;
  settings.cache_metric = settings.cache_metric.value_or(CacheMetric::kNone);
  KVC_CHECK_USAGE(settings.own<RankSettings>().allocation != RankAllocation::kFisher,
                  "--rank-alloc fisher: --method {} shares ranks by energy; use uniform or energy",
                  settings.method);
  check_ranks(settings);
}

void fix_pca(ConvertSettings& settings) {
  fix_static(settings);
  settings.own<PrincipalSettings>().joint = true;
  settings.own<PrincipalSettings>().value_ratio = PrincipalSettings().value_ratio;
  settings.own<RankSettings>().allocation = RankAllocation::kEnergy;
}

template <LatentBasis basis>
KvPlan plan_with(const PlanRequest& request) {
  return make_principal_plan(request, basis);
}

template <LatentBasis basis>
double least_ratio_with(const PlanRequest& request) {
  return least_principal_kept_ratio(request, basis);
}

StatisticsNeeds calibrated_needs(const ModelConfig&, const ConvertSettings& settings) {
  return {.joint_layers = settings.layers_per_group,
          .attention_metric = needs_attention(*settings.cache_metric),
          .gradient_metric = needs_gradient(*settings.cache_metric),
          .least_tokens = 1};
}

// Directions of each request.
Method of_requests() {
  return Method{.name = "xkv",
                .options = {rank_options, principal_options},
                .apply_paper_preset = apply_xkv_preset,
                .fix_settings = fix_xkv,
                .make_plan = plan_with<LatentBasis::kRequest>,
                .convert = report_request_groups,
                .fill_table = fill_principal_table,
                .exact_tokens = latent_exact_tokens,
                .least_kept_ratio = least_ratio_with<LatentBasis::kRequest>,
                .takes_own_latents = true};
}

// Calibrated ones.
Method calibrated(std::string_view name, void (*fix_settings)(ConvertSettings&)) {
  Method method = of_requests();
  method.name = name;
  method.fix_settings = fix_settings;
  method.make_plan = plan_with<LatentBasis::kCalibrated>;
  method.convert = convert_principal_groups;
  method.needs = calibrated_needs;
  method.least_kept_ratio = least_ratio_with<LatentBasis::kCalibrated>;
  method.served = &kServedLatents;
  method.takes_own_latents = fix_settings == fix_static;
  return method;
}

}  // namespace

const Method kXkv = of_requests();
const Method kXkvStatic = calibrated("xkv-static", fix_static);
const Method kPca = calibrated("pca", fix_pca);

}  // namespace kvc
