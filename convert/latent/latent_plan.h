// Plans of latent groups from a config and settings, or a refusal with the numbers and settings that
// work.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/convert.h"
#include "convert/methods/methods.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// A method's groups with their ranks. `fisher_scores` [num_layers, 2] (key, value), or null.
using PlanGroups = std::vector<LatentGroup> (*)(const ModelConfig& config,
                                                const ConvertSettings& settings,
                                                const std::vector<double>* fisher_scores);

// As Method::make_plan.
KvPlan make_latent_plan(const ModelConfig& config, const ConvertSettings& settings, bool force,
                        const std::vector<double>* fisher_scores, PlanGroups plan_groups);

// As Method::least_kept_ratio.
double least_latent_kept_ratio(const ModelConfig& config, const ConvertSettings& settings,
                               PlanGroups plan_groups);
// As Method::exact_tokens, for latents of every kind.
ExactTokens latent_exact_tokens(std::int64_t context);

// --rank-multiple, or its default for this model.
std::int64_t rank_multiple(const ModelConfig& config, const ConvertSettings& settings);

// Runs of at most `layers_per_group` adjacent layers of one kind. The last of a run of equal layers
// may be shorter.
std::vector<LatentGroup> group_layers(const ModelConfig& config, int layers_per_group);

}  // namespace kvc
