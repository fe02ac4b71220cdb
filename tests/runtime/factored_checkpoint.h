// Factored checkpoints written by hand, so that the runtime is tested without the stages that make them.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/kv_plan.h"
#include "tests/testing/synthetic_checkpoint.h"

namespace kvc::testing {

// All layers in groups of `layers_per_group` (the last may be shorter) of this rank, equal merge weights
// where the rule has any.
KvPlan grouped_plan(const SyntheticCheckpoint& model, int layers_per_group, std::int64_t rank,
                    const MergePolicy& policy);
// One group per layer with separate key and value latents.
KvPlan split_plan(const SyntheticCheckpoint& model, std::int64_t key_rank, std::int64_t value_rank);

// Writes the synthetic checkpoint converted by `plan`: A, B and P from a float64 SVD of each group's
// stacked projections (B = U S^1/2, A = S^1/2 V^T, P = S^-1 B^T).
void write_factored_checkpoint(const std::filesystem::path& directory,
                               const SyntheticCheckpoint& model, const KvPlan& plan);

}  // namespace kvc::testing
