#include "core/kv_plan.h"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "core/arithmetic.h"
#include "core/kv_plan_parts.h"

namespace kvc {
namespace {

constexpr double kWeightTolerance = 1e-6;

std::string name_of(const LatentGroup& group) {
  return "KV plan: " + to_string(LayerRange{group.first_layer, group.num_layers});
}

bool uses_weights(MergeRule rule) {
  return rule == MergeRule::kMean || rule == MergeRule::kFisher || rule == MergeRule::kSensitivity;
}

void check_ranks(const KvPlan& plan, const LatentGroup& group) {
  const std::string subject = name_of(group);
  const std::int64_t kv_dim = plan.kv_dim();
  KVC_CHECK(!plan.own_widths || (group.basis != LatentBasis::kWeights && !group.split_kv),
            "{}: their cache holds latents of the model's own, which can share joint principal "
            "directions alone",
            subject);
  if (group.split_kv) {
    KVC_CHECK(group.num_layers == 1 || !group.replaces_projections(),
              "{}: split keys and values need a group of one layer", subject);
    const std::int64_t widest = group.num_layers * kv_dim;
    for (const std::int64_t rank : {group.key_rank, group.value_rank}) {
      KVC_CHECK(rank >= 1 && rank <= widest, "{}: key or value rank {}, expected 1 to kv_dim {}",
                subject, rank, widest);
    }
    KVC_CHECK(group.rank == group.key_rank + group.value_rank,
              "{}: rank {} is not key rank {} + value rank {}", subject, group.rank, group.key_rank,
              group.value_rank);
    return;
  }
  KVC_CHECK(group.key_rank == 0 && group.value_rank == 0,
            "{}: key and value ranks {} and {}, expected 0 in a joint group", subject,
            group.key_rank, group.value_rank);
  const std::int64_t widest = group.num_layers * grouped_widths(plan).total();
  KVC_CHECK(group.rank >= 1 && group.rank <= widest, "{}: rank {}, expected 1 to {} (its {})",
            subject, group.rank, widest, plan.own_widths ? "latents" : "keys and values");
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

}  // namespace

KvWidths grouped_widths(const KvPlan& plan) {
  return plan.own_widths ? KvWidths{plan.own_widths->key, 0}
                         : KvWidths{plan.kv_dim(), plan.kv_dim()};
}

void check_group(const KvPlan& plan, const LatentGroup& group) {
  check_ranks(plan, group);
  check_weights(group, plan.compression.rule);
}

// Groups of principal directions store one latent for every token outside the window.
void check_basis(const KvPlan& plan) {
  for (const LatentGroup& group : plan.groups) {
    KVC_CHECK(group.basis == plan.groups.front().basis,
              "{}: a {} basis, but {} in the first group; expected one kind", name_of(group),
              to_string(group.basis), to_string(plan.groups.front().basis));
  }
  KVC_CHECK(plan.request.has_value() == has_basis(plan, LatentBasis::kRequest),
            "KV plan: \"request\" is for groups whose basis is the request's, and for those only");
  if (plan.groups.empty() || has_basis(plan, LatentBasis::kWeights)) {
    return;
  }
  KVC_CHECK(
      plan.compression.rule == MergeRule::kLs &&
          plan.compression.granularity == Granularity::kGroup &&
          plan.compression.unmerged == UnmergedForm::kPlain &&
          plan.compression.prefill == PrefillMode::kExact,
      "KV plan: principal directions encode every token; expected rule ls, granularity group, "
      "unmerged plain and prefill exact");
  KVC_CHECK(!plan.request || !plan.request->compress_generated ||
                plan.request->later != LaterTokens::kExact,
            "KV plan: generated tokens are to be compressed and to stay exact");
}

}  // namespace kvc
