// What conversions to latent groups can be told.
#pragma once

#include <cstdint>

#include "convert/methods/methods.h"

namespace kvc {

enum class RankAllocation { kUniform, kFisher, kEnergy };
enum class Factor { kPlain, kWhitened, kJoint };
enum class UnmergedChoice { kAuto, kPlain, kLatent };
// Coordinates of merged latents: those of the factorisation, or key channels kept verbatim
// (convert/latent/merging.h).
enum class Gauge { kSvd, kPivot };

// Settings of all methods with latents.
struct RankSettings {
  // Ranks are rounded down to it; 0: 32 if hidden_size >= 1024, else 4
  std::int64_t multiple = 0;
  RankAllocation allocation = RankAllocation::kUniform;
};
Options rank_options(ConvertSettings& settings);
// --rank-multiple, or its default for this model.
std::int64_t rank_multiple(const ModelConfig& config, const ConvertSettings& settings);

// Settings of methods that factorise projections.
struct LatentSettings {
  double rank =
      0.7;  // latent width / hidden_size, in (0, 1]; palu: fraction of each projection's width
  Factor factor = Factor::kWhitened;
  MergeRule merge = MergeRule::kLs;
  bool ls_fisher_weights = true;  // least squares weighted by fisher_diag
  bool refit = true;
  Gauge gauge = Gauge::kSvd;
  Granularity granularity = Granularity::kToken;
  UnmergedChoice unmerged = UnmergedChoice::kAuto;
  std::int64_t heads_per_group = 0;  // palu: KV heads factorised together; 0: all
};
Options latent_options(ConvertSettings& settings);
// What follows from the merge rule; UsageError where a gauge does not go with it.
void fix_latent_settings(ConvertSettings& settings);
// As Method::factor_needs and Method::rank.
FactorNeeds latent_needs(const ConvertSettings& settings);
double& latent_rank(ConvertSettings& settings);

}  // namespace kvc
