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

enum class CodedScope { kHead, kLayer, kGroup };  // kGroup: pairs of layers

struct CodedPlanOptions {
  CodedScope scope = CodedScope::kLayer;
  std::int64_t coefficients[kMaxCodeBits + 1] =
      {};  // [bits]; of no width: as many of 8 as channels
  bool gain = false;
};
// All layers coded; 2 sinks and a window of 6.
KvPlan coded_plan(const SyntheticCheckpoint& model, const CodedPlanOptions& options);

// Writes the synthetic checkpoint converted by `plan`: A, B and P from a float64 SVD of each group's
// stacked projections (B = U S^1/2, A = S^1/2 V^T, P = S^-1 B^T); random orthogonal bases of coded blocks,
// whose codes reach to +-4.
void write_factored_checkpoint(const std::filesystem::path& directory,
                               const SyntheticCheckpoint& model, const KvPlan& plan);

}  // namespace kvc::testing
