#include "convert/latent/latent_settings.h"

#include "core/error.h"

namespace kvc {
namespace {

constexpr EnumName<Factor> kFactors[] = {
    {Factor::kPlain, "plain"}, {Factor::kWhitened, "whitened"}, {Factor::kJoint, "joint"}};
constexpr EnumName<RankAllocation> kRankAllocations[] = {{RankAllocation::kUniform, "uniform"},
                                                         {RankAllocation::kFisher, "fisher"},
                                                         {RankAllocation::kEnergy, "energy"}};
constexpr EnumName<UnmergedChoice> kUnmergedChoices[] = {{UnmergedChoice::kAuto, "auto"},
                                                         {UnmergedChoice::kPlain, "plain"},
                                                         {UnmergedChoice::kLatent, "latent"}};
constexpr EnumName<Gauge> kGauges[] = {{Gauge::kSvd, "svd"}, {Gauge::kPivot, "pivot"}};

}  // namespace

Options rank_options(ConvertSettings& settings) {
  auto& [multiple, allocation] = settings.own<RankSettings>();
  Options options;
  options.add(
      "--rank-multiple", "rank_multiple", multiple,
      "Ranks are rounded down to a multiple of this (0: 32 from hidden_size 1024 on, else 4)",
      "0 (automatic) or a positive number", [](auto value) { return value >= 0; });
  options.add("--rank-alloc", "rank_allocation", allocation, kRankAllocations, "rank allocation",
              "Ranks of the groups: uniform (default), fisher (commonkv, palu), or energy (per "
              "byte of cache "
              "and factors: xkv-static; always pca)");
  return options;
}

std::int64_t rank_multiple(const ModelConfig& config, const ConvertSettings& settings) {
  const std::int64_t given = settings.own<RankSettings>().multiple;
  if (given > 0) {
    return given;
  }
  return config.hidden_size >= 1024 ? 32 : 4;
}

Options latent_options(ConvertSettings& settings) {
  LatentSettings& own = settings.own<LatentSettings>();
  Options options;
  options.add("--rank", "rank", own.rank, "Width of the latent as a fraction of hidden_size",
              "a fraction above 0 and at most 1", is_share);
  options.add(
      "--factor", "factor", own.factor, kFactors, "factorisation",
      "Factorisation: whitened (default), plain (weights alone) or joint (keys and values)");
  options.add(
      "--merge", "merge", own.merge, parse_merge_rule,
      "How layers' latents merge: ls (least squares, default), fisher, mean, sensitivity or none");
  options.add("--ls-fisher,!--no-ls-fisher", "ls_fisher_weights", own.ls_fisher_weights,
              "Weight least squares by Fisher information (default)");
  options.add("--refit,!--no-refit", "refit", own.refit,
              "Refit the reconstruction to the merged latents (default)");
  options.add("--gauge", "gauge", own.gauge, kGauges, "gauge",
              "Coordinates of latents: svd (default), or pivot (stores some key channels verbatim; "
              "steps rebuild fewer)");
  options.add("--granularity", "granularity", own.granularity, parse_granularity,
              "What merges at a time: token (default) or group");
  options.add(
      "--unmerged", "unmerged", own.unmerged, kUnmergedChoices, "form of unmerged tokens",
      "What unmerged tokens store: plain (KV), latent (per layer), or auto (the smaller, default)");
  options.add("--head-group", "heads_per_group", own.heads_per_group,
              "palu: KV heads factorised together (0: all)",
              "0 (all KV heads) or a positive number", [](auto value) { return value >= 0; });
  return options;
}

void fix_latent_settings(ConvertSettings& settings) {
  LatentSettings& own = settings.own<LatentSettings>();
  own.refit = own.refit && own.merge != MergeRule::kNone;
  own.ls_fisher_weights = own.ls_fisher_weights && own.merge == MergeRule::kLs;
  KVC_CHECK_USAGE(own.gauge == Gauge::kSvd || own.merge == MergeRule::kLs,
                  "--gauge pivot requires --merge ls; other rules merge latents in the "
                  "factorisation's coordinates");
  KVC_CHECK_USAGE(settings.own<RankSettings>().allocation != RankAllocation::kEnergy,
                  "--rank-alloc energy: --method {} shares ranks by Fisher information; use "
                  "uniform or fisher",
                  settings.method);
  KVC_CHECK_USAGE(settings.prefill != PrefillMode::kCoded,
                  "--prefill coded: latents are not codes; use exact or truncated");
}

FactorNeeds latent_needs(const ConvertSettings& settings) {
  const LatentSettings& own = settings.own<LatentSettings>();
  return {.calibration = own.factor == Factor::kWhitened,
          .fisher = own.merge == MergeRule::kFisher || own.ls_fisher_weights ||
                    settings.own<RankSettings>().allocation == RankAllocation::kFisher};
}

double& latent_rank(ConvertSettings& settings) { return settings.own<LatentSettings>().rank; }

}  // namespace kvc
