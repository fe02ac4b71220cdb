// Plans of latent groups from a config and settings, or a refusal with the numbers and settings that
// work.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/latent/latent_settings.h"
#include "convert/methods/methods.h"
#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// A method's groups with their ranks.
using PlanGroups = std::vector<LatentGroup> (*)(const PlanRequest& request);

// As Method::make_plan and Method::least_kept_ratio.
KvPlan make_latent_plan(const PlanRequest& request, PlanGroups plan_groups);
double least_latent_kept_ratio(const PlanRequest& request, PlanGroups plan_groups);
// As Method::exact_tokens, for latents of every kind.
ExactTokens latent_exact_tokens(std::int64_t context);

// --rank-multiple, or its default for this model.
std::int64_t rank_multiple(const ModelConfig& config, const ConvertSettings& settings);

// Runs of at most `layers_per_group` adjacent layers of one kind. The last of a run of equal layers
// may be shorter.
std::vector<LatentGroup> group_layers(const ModelConfig& config, int layers_per_group);

// Peak of one group's factorisation: its stacked weights, Gram matrices and LAPACK's workspace, beside one group's
// layers in float32 and the boundary of hidden states. Estimated bytes.
std::int64_t peak_memory(const ModelConfig& config, const KvPlan& plan);
// Seconds on two cores, by measured constants of the eigendecomposition and of float64 products.
double factorisation_seconds(const ModelConfig& config, const KvPlan& plan, bool whitened);

// A row for every group.
void add_latent_rows(PlanTable& table, const PlanRequest& request);
// As Method::fill_table, of principal directions.
void fill_principal_table(PlanTable& table, const PlanRequest& request);

}  // namespace kvc
