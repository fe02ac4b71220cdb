#include "convert/plan.h"

#include <algorithm>

#include "convert/factor_bytes.h"
#include "convert/methods/methods.h"
#include "core/error.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

constexpr std::int64_t kDefaultContext = 8192;

// What a group of `num_tokens` holds when as much as possible is merged, or nothing.
GroupTokens extreme_tokens(const KvPlan& plan, std::int64_t num_tokens, bool merged) {
  GroupTokens tokens;
  tokens.pending = std::min(num_tokens, plan.policy.sink_tokens + plan.policy.window_tokens);
  (merged ? tokens.merged : tokens.unmerged) = num_tokens - tokens.pending;
  tokens.bases = merged && plan.request ? 1 : 0;
  return tokens;
}

bool merges(const KvPlan& plan) { return plan.policy.rule != MergeRule::kNone; }

// Error with the numbers and the settings that help where a conversion would take more memory than the original even
// with four times the tokens in flight.
void check_pays(const KvPlan& plan, const ModelConfig& config, const ConvertSettings& settings) {
  constexpr std::int64_t kMostTimes = 4;
  const Payback gain = estimated_payback(plan, config, settings);
  const std::int64_t expected = tokens_in_flight(config, settings);
  if (gain.tokens / kMostTimes <= expected) {
    return;
  }
  const std::string more_tokens =
      gain.tokens == Payback::kNever
          ? ""
          : fmt::format("--tokens-in-flight {} if you expect so many, ", gain.tokens);
  fail(
      "--method {}: {}, more than {} times the {} tokens that are expected; with fewer it takes "
      "more memory than it saves. Use {}{}, or --force to convert anyway",
      settings.method, to_text(gain), kMostTimes, expected, more_tokens,
      plan.coded.empty() ? "a smaller --rank, or --method coded" : "--scope head");
}

}  // namespace

KvPlan make_plan(const ModelConfig& config, const ConvertSettings& settings, bool force,
                 const std::vector<double>* fisher_scores) {
  const Method& method = find_method(settings.method);
  if (const auto reason = refusal(method, *config.arch)) {
    fail("--method {}: {}", settings.method, *reason);
  }
  KvPlan plan = method.make_plan({config, settings, force, fisher_scores});
  plan.check();
  if (!force) {
    check_pays(plan, config, settings);
  }
  return plan;
}

KeptRange kept_range(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype) {
  const auto ratio = [&](bool merged) {
    const std::vector<GroupTokens> groups(plan.groups.size(),
                                          extreme_tokens(plan, num_tokens, merged));
    const std::vector<PairTokens> pairs(
        plan.paired ? plan.paired->first_layers.size() : 0,
        plan.paired ? merged_pair(plan, num_tokens, !merged) : PairTokens());
    return static_cast<double>(plan_bytes(plan, num_tokens, groups, dtype, 1, pairs)) /
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

PairTokens merged_pair(const KvPlan& plan, std::int64_t num_tokens, bool retains) {
  const std::int64_t retained = retains ? plan.paired->most_retained(num_tokens) : 0;
  return {.merged = num_tokens, .retained_keys = retained, .retained_values = retained};
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

Payback plan_payback(const KvPlan& plan, const ModelConfig& config, const ConvertSettings& settings,
                     std::int64_t factor_bytes) {
  const std::int64_t context = plan_context(config, settings);
  const double kept = planned_type_scale(plan, config, settings) *
                      planned_kept_ratio(plan, context, planned_dtype(config, settings));
  return payback(factor_bytes, static_cast<double>(original_bytes(plan, 1, cache_dtype(config))),
                 kept);
}

Payback estimated_payback(const KvPlan& plan, const ModelConfig& config,
                          const ConvertSettings& settings) {
  return plan_payback(plan, config, settings, estimated_factor_bytes(plan, config, settings));
}

}  // namespace kvc
