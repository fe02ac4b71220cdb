// Latent groups in the table of --plan.
#pragma once

#include <cstdint>

#include "convert/methods/methods.h"

namespace kvc {

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
