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
ExactTokens latent_exact_tokens(const ConvertSettings&, std::int64_t context);

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

// `width` rounded down to a multiple; never zero, never above `cap` (which need not be a multiple).
std::int64_t round_rank(double width, std::int64_t multiple, std::int64_t cap);

// Shares `total` among groups in proportion to `scores`, none above its cap; the rest of a capped
// group goes to the others. Rounded down to multiples; the remainder goes to the largest fractions
// (ties: lower index). Scores that are all zero count as equal.
std::vector<std::int64_t> allocate_ranks(const std::vector<double>& scores, std::int64_t total,
                                         const std::vector<std::int64_t>& caps,
                                         std::int64_t multiple);

// How many coefficients each basis keeps when all of a model's compete. `eigenvalues[i]` of basis i, descending; `bytes[i]`:
// what one of its coefficients costs, in the cache and as rows of the factors. Takes `multiple` coefficients at a time,
// those with the most energy per byte first, until `total` are taken or none are left; every basis has at least `multiple`
// (or all it has), at most caps[i]. Ties: lower index.
std::vector<std::int64_t> allocate_by_energy(const std::vector<std::vector<double>>& eigenvalues,
                                             std::int64_t total,
                                             const std::vector<std::int64_t>& caps,
                                             std::int64_t multiple,
                                             const std::vector<double>& bytes);

}  // namespace kvc
