#include "core/kv_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/checked.h"

namespace kvc {
namespace {

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;  // heads, head_dim
constexpr std::int64_t kMaxLayers = std::int64_t{1} << 16;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr double kWeightTolerance = 1e-6;

std::string name_of(const LatentGroup& group) {
  return fmt::format("KV plan: layers {}-{}", group.first_layer,
                     group.first_layer + group.num_layers - 1);
}

bool uses_weights(MergeRule rule) {
  return rule == MergeRule::kMean || rule == MergeRule::kFisher || rule == MergeRule::kSensitivity;
}

void check_ranks(const LatentGroup& group, std::int64_t kv_dim) {
  const std::string subject = name_of(group);
  if (group.split_kv) {
    KVC_CHECK(group.num_layers == 1, "{}: split keys and values need a group of one layer",
              subject);
    for (const std::int64_t rank : {group.key_rank, group.value_rank}) {
      KVC_CHECK(rank >= 1 && rank <= kv_dim, "{}: key or value rank {}, expected 1 to kv_dim {}",
                subject, rank, kv_dim);
    }
    KVC_CHECK(group.rank == group.key_rank + group.value_rank,
              "{}: rank {} is not key rank {} + value rank {}", subject, group.rank, group.key_rank,
              group.value_rank);
    return;
  }
  KVC_CHECK(group.key_rank == 0 && group.value_rank == 0,
            "{}: key and value ranks {} and {}, expected 0 in a joint group", subject,
            group.key_rank, group.value_rank);
  const std::int64_t widest = 2 * group.num_layers * kv_dim;
  KVC_CHECK(group.rank >= 1 && group.rank <= widest,
            "{}: rank {}, expected 1 to {} (its keys and values)", subject, group.rank, widest);
}

void check_weights(const LatentGroup& group, MergeRule rule) {
  const std::string subject = name_of(group);
  const std::vector<double>& weights = group.merge_weights;
  const auto expected = static_cast<std::size_t>(uses_weights(rule) ? group.num_layers : 0);
  KVC_CHECK(weights.size() == expected, "{}: {} merge weights, expected {} for rule {}", subject,
            weights.size(), expected, to_string(rule));
  if (expected == 0) {
    return;
  }
  for (const double weight : weights) {
    KVC_CHECK(std::isfinite(weight) && weight >= 0, "{}: merge weight {}, expected 0 to 1", subject,
              weight);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  KVC_CHECK(std::abs(sum - 1) <= kWeightTolerance, "{}: merge weights sum to {}, expected 1",
            subject, sum);
}

void check_policy(const MergePolicy& policy) {
  KVC_CHECK(std::isfinite(policy.target_kept_ratio) && policy.target_kept_ratio > 0,
            "KV plan: target_kept_ratio {}, expected more than 0", policy.target_kept_ratio);
  for (const std::int64_t tokens : {policy.sink_tokens, policy.window_tokens}) {
    KVC_CHECK(tokens >= 0 && tokens <= kMaxTokens,
              "KV plan: {} sink or window tokens, expected 0 to {}", tokens, kMaxTokens);
  }
  KVC_CHECK(policy.block_tokens >= 1 && policy.block_tokens <= kMaxTokens,
            "KV plan: blocks of {} tokens, expected 1 to {}", policy.block_tokens, kMaxTokens);
}

void check_own_widths(const KvPlan& plan) {
  if (!plan.own_widths) {
    return;
  }
  for (const std::int64_t width : {plan.own_widths->key, plan.own_widths->value}) {
    KVC_CHECK(width >= 1 && width <= kMaxWidth,
              "KV plan: {} values per token in the model's own cache, expected 1 to {}", width,
              kMaxWidth);
  }
  KVC_CHECK(plan.groups.empty(),
            "KV plan: {} groups of layers whose cache already holds latents of their own; expected "
            "none",
            plan.groups.size());
}

}  // namespace

int KvPlan::group_of(int layer) const {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (layer >= groups[i].first_layer && layer < groups[i].first_layer + groups[i].num_layers) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

void KvPlan::check() const {
  KVC_CHECK(
      num_kv_heads >= 1 && num_kv_heads <= kMaxWidth && head_dim >= 1 && head_dim <= kMaxWidth,
      "KV plan: {} KV heads of {} channels, expected 1 to {}", num_kv_heads, head_dim, kMaxWidth);
  KVC_CHECK(!layers.empty() && static_cast<std::int64_t>(layers.size()) <= kMaxLayers,
            "KV plan: {} layers, expected 1 to {}", layers.size(), kMaxLayers);
  std::vector<bool> covered(layers.size(), false);
  int next = 0;
  for (const LatentGroup& group : groups) {
    KVC_CHECK(group.num_layers >= 1 && group.num_layers <= num_layers(),
              "KV plan: the group at layer {} has {} layers, expected 1 to {}", group.first_layer,
              group.num_layers, num_layers());
    KVC_CHECK(group.first_layer >= next && group.first_layer <= num_layers() - group.num_layers,
              "KV plan: a group begins at layer {}, expected {} to {} (ascending, no overlap)",
              group.first_layer, next, num_layers() - group.num_layers);
    next = group.first_layer + group.num_layers;
    std::fill(covered.begin() + group.first_layer, covered.begin() + next, true);
    check_ranks(group, kv_dim());
    check_weights(group, policy.rule);
  }
  for (int layer = 0; layer < num_layers(); ++layer) {
    const auto i = static_cast<std::size_t>(layer);
    KVC_CHECK(covered[i] == (layers[i] == KvSource::kLatent),
              "KV plan: layer {} is {}, but {} group holds it", layer,
              layers[i] == KvSource::kLatent ? "latent" : "plain", covered[i] ? "a" : "no");
  }
  check_policy(policy);
  check_own_widths(*this);
  KVC_CHECK(
      groups.empty() || policy.rule != MergeRule::kNone || policy.unmerged == UnmergedForm::kLatent,
      "KV plan: rule none keeps every compressed token as latents; unmerged must be latent");
}

bool keeps_latents(const KvPlan& plan, int group) {
  return plan.groups[static_cast<std::size_t>(group)].split_kv ||
         plan.policy.rule == MergeRule::kNone || plan.policy.unmerged == UnmergedForm::kLatent;
}

bool needs_latents(const KvPlan& plan, int group) {
  return keeps_latents(plan, group) || plan.policy.rule != MergeRule::kLs ||
         plan.policy.prefill == PrefillMode::kTruncated;
}

KvPlan plain_plan(int num_layers, std::int64_t num_kv_heads, std::int64_t head_dim) {
  KvPlan plan;
  plan.num_kv_heads = num_kv_heads;
  plan.head_dim = head_dim;
  plan.layers.assign(static_cast<std::size_t>(num_layers), KvSource::kPlain);
  plan.check();
  return plan;
}

}  // namespace kvc
