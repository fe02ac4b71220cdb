// Factored checkpoints written by hand, so that the runtime is tested without the stages that make them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>

#include "core/kv_plan.h"
#include "tests/testing/synthetic_checkpoint.h"

namespace kvc::testing {

// All layers in groups of `layers_per_group` (the last may be shorter) of this rank, equal merge weights
// where the rule has any.
KvPlan grouped_plan(const SyntheticCheckpoint& model, int layers_per_group, std::int64_t rank,
                    const CompressionSettings& policy);
// One group per layer with separate key and value latents.
KvPlan split_plan(const SyntheticCheckpoint& model, std::int64_t key_rank, std::int64_t value_rank);

enum class CodedScope { kHead, kLayer, kGroup };  // kGroup: pairs of layers

struct CodedPlanOptions {
  CodedScope scope = CodedScope::kLayer;
  std::int64_t coefficients[kMaxCodeBits + 1] =
      {};  // [bits]; of no width: as many of 8 as channels. Blocks of one part have half of each
  bool gain = false;
  int bases = 0;  // of the keys of a head, apart from values; 1: of the scope's keys; 0: not apart
  bool rotated = false;
  bool codes_prompts = false;
};
// All layers coded; 2 sinks, and a window of 6 unless prompts are read through codes.
KvPlan coded_plan(const SyntheticCheckpoint& model, const CodedPlanOptions& options);

// The upper half of the layers fused: layer l of form `form` from the bottom and the middle storage layer
// (num_sources 2), or keys from the middle and values from the bottom one (1).
KvPlan fused_upper_plan(const SyntheticCheckpoint& model, FusionForm form, int num_sources);
// What the checkpoint holds for a fused layer, as core/conversion_file.h has it: numbers of order 1 that
// both channels of a RoPE pair share. float32
at::Tensor fused_weight(const KvPlan& plan, const FusedLayer& layer, bool key);

// Groups of principal directions, key and value ranks (both 0: of all channels), or joint of their sum.
KvPlan principal_plan(const SyntheticCheckpoint& model, int layers_per_group, LatentBasis basis,
                      bool joint, std::int64_t key_rank, std::int64_t value_rank);

// Layers 2 and 3 share directions (MiniCache); this share of tokens is retained.
KvPlan paired_plan(const SyntheticCheckpoint& model, double retained = 0.05);

// Writes the synthetic checkpoint converted by `plan`: A, B and P from a float64 SVD of each group's
// stacked projections (B = U S^1/2, A = S^1/2 V^T, P = S^-1 B^T); of calibrated directions random
// orthonormal ones about a random mean; random orthogonal bases of coded blocks (of rotated ones single
// channels), whose codes reach to +-4; fused_weight of every fused layer.
void write_factored_checkpoint(const std::filesystem::path& directory,
                               const SyntheticCheckpoint& model, const KvPlan& plan);

}  // namespace kvc::testing
