// Plans of groups whose latents are coefficients of principal directions (xKV, its calibrated variant, PCA), of keys
// and values or of a model's own latents, which are joint.
#pragma once

#include <cstdint>

#include "convert/methods/methods.h"

namespace kvc {

struct PrincipalSettings {
  bool joint = false;        // one latent for keys and values, instead of one each
  double value_ratio = 1.5;  // value directions per key direction, if ranks follow from kept_ratio
  std::int64_t key_rank = 0,
               value_rank = 0;              // per layer of a group; 0: from kept_ratio
  LaterTokens later = LaterTokens::kExact;  // xkv: of later turns
  std::int64_t recompress_every = 0;        // xkv: generated tokens, 0: stay exact
  BasisSolver solver = BasisSolver::kEigh;  // xkv
};

Options principal_options(ConvertSettings& settings);

// Ranks from --key-rank and --value-rank, or such that a text of --context tokens keeps --kept-ratio of its
// bytes. Groups that would not shrink stay plain. Throws Error with the numbers, unless request.force.
KvPlan make_principal_plan(const PlanRequest& request, LatentBasis basis);

// As Method::least_kept_ratio; for given ranks their ratio.
double least_principal_kept_ratio(const PlanRequest& request, LatentBasis basis);

// --rank-multiple, or its default: whole groups of channels under one scale for integer caches.
std::int64_t principal_rank_multiple(const ModelConfig& config, const ConvertSettings& settings);

// As Method::convert.
void convert_principal_groups(ConversionJob& job);
// For groups whose basis is found at run time: nothing to measure.
void report_request_groups(ConversionJob& job);

}  // namespace kvc
