#include "convert/latent/kept_range.h"

#include <algorithm>

#include "convert/paired_row.h"
#include "core/kv_plan_bytes.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

constexpr std::int64_t kDefaultContext = 8192;

// What a group of `num_tokens` holds when as much as possible is merged, or nothing.
GroupTokens extreme_tokens(const KvPlan& plan, std::int64_t num_tokens, bool merged) {
  GroupTokens tokens;
  tokens.pending = std::min(num_tokens, plan.policy.exact_tokens());
  (merged ? tokens.merged : tokens.unmerged) = num_tokens - tokens.pending;
  tokens.bases = merged && plan.request ? 1 : 0;
  return tokens;
}

bool merges(const KvPlan& plan) { return plan.policy.rule != MergeRule::kNone; }

}  // namespace

KeptRange kept_range(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype) {
  const auto ratio = [&](bool merged) {
    const std::vector<GroupTokens> groups(plan.groups.size(),
                                          extreme_tokens(plan, num_tokens, merged));
    return static_cast<double>(plan_bytes(plan, num_tokens, groups, dtype, 1,
                                          merged_pairs(plan, num_tokens, !merged))) /
           static_cast<double>(original_bytes(plan, num_tokens, dtype));
  };
  return {ratio(merges(plan)), ratio(false)};
}

KeptRange group_kept_range(const KvPlan& plan, int group, std::int64_t num_tokens, KvDtype dtype) {
  const LatentGroup& layers = plan.groups.at(static_cast<std::size_t>(group));
  const auto plain =
      static_cast<double>(layers.num_layers * plain_layer_bytes(plan, num_tokens, dtype));
  const auto ratio = [&](bool merged) {
    const GroupTokens tokens = extreme_tokens(plan, num_tokens, merged);
    return static_cast<double>(group_bytes(plan, group, tokens, dtype)) / plain;
  };
  return {ratio(merges(plan)), ratio(false)};
}

double unmerged_share(double target, const KeptRange& range) {
  if (range.highest <= range.lowest) {
    return target >= range.highest ? 1 : 0;
  }
  return std::clamp((target - range.lowest) / (range.highest - range.lowest), 0.0, 1.0);
}

TokenBytes token_bytes(const KvPlan& plan, int group, KvDtype dtype) {
  const LatentGroup& layers = plan.groups.at(static_cast<std::size_t>(group));
  TokenBytes bytes;
  bytes.plain = layers.num_layers * plain_layer_bytes(plan, 1, dtype);
  bytes.unmerged = group_bytes(plan, group, {.unmerged = 1}, dtype);
  bytes.merged = merges(plan) ? group_bytes(plan, group, {.merged = 1}, dtype) : bytes.unmerged;
  return bytes;
}

KvDtype planned_dtype(const ModelConfig& config, const ConvertSettings& settings) {
  return settings.kv_dtype.empty() ? cache_dtype(config) : parse_kv_dtype(settings.kv_dtype);
}

std::int64_t plan_context(const ModelConfig& config, const ConvertSettings& settings) {
  return settings.context > 0 ? settings.context
                              : std::min(config.max_position_embeddings, kDefaultContext);
}

std::int64_t tokens_in_flight(const ModelConfig& config, const ConvertSettings& settings) {
  return settings.tokens_in_flight > 0 ? settings.tokens_in_flight
                                       : std::max(plan_context(config, settings), kDefaultContext);
}

double planned_type_scale(const KvPlan& plan, const ModelConfig& config,
                          const ConvertSettings& settings) {
  return static_cast<double>(original_bytes(plan, 1, planned_dtype(config, settings))) /
         static_cast<double>(original_bytes(plan, 1, cache_dtype(config)));
}

double planned_kept_ratio(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype) {
  const KeptRange range = kept_range(plan, num_tokens, dtype);
  return range.lowest +
         unmerged_share(plan.policy.target_kept_ratio, range) * (range.highest - range.lowest);
}

}  // namespace kvc
