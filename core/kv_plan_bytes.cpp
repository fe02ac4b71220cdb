#include "core/checked.h"
#include "core/kv_plan.h"

namespace kvc {
namespace {

constexpr const char* kSubject = "KV bytes";
constexpr std::int64_t kPositionBytes = 4;  // int32
constexpr std::int64_t kFloatBytes = 4;

template <typename... Factors>
std::int64_t product(std::int64_t first, Factors... rest) {
  ((first = checked_mul(first, std::int64_t{rest}, kSubject)), ...);
  return first;
}

std::int64_t sum(std::int64_t a, std::int64_t b) { return checked_add(a, b, kSubject); }

std::int64_t round_up(std::int64_t tokens, std::int64_t page_tokens) {
  KVC_CHECK(tokens >= 0 && page_tokens >= 1, "{}: {} tokens in pages of {}", kSubject, tokens,
            page_tokens);
  return product(sum(tokens, page_tokens - 1) / page_tokens, page_tokens);
}

// Beside its exact keys and values, what a pending token keeps so that it can be decided and
// encoded.
std::int64_t held_bytes(const KvPlan& plan, const LatentGroup& group, std::int64_t element) {
  if (plan.policy.unmerged == UnmergedForm::kLatent) {
    return product(group.num_layers, group.rank, element);
  }
  if (plan.policy.rule == MergeRule::kLs) {
    return plan.key_norm ? product(group.num_layers, plan.num_kv_heads, kFloatBytes) : 0;
  }
  return sum(product(group.rank, element), kFloatBytes);
}

}  // namespace

std::int64_t group_bytes(const KvPlan& plan, int index, const GroupTokens& tokens, KvDtype dtype,
                         std::int64_t page_tokens) {
  const LatentGroup& group = plan.groups.at(static_cast<std::size_t>(index));
  const std::int64_t element = bytes_per_element(dtype);
  const bool positions =
      plan.policy.granularity == Granularity::kToken && plan.policy.rule != MergeRule::kNone;
  const std::int64_t position = positions ? kPositionBytes : 0;
  const std::int64_t latent = product(group.rank, element);
  const std::int64_t exact = product(2, group.num_layers, plan.kv_dim(), element);
  const std::int64_t unmerged =
      plan.policy.unmerged == UnmergedForm::kPlain ? exact : product(group.num_layers, latent);
  const std::int64_t pending = sum(exact, held_bytes(plan, group, element));
  const std::int64_t merged_total =
      product(round_up(tokens.merged, page_tokens), sum(latent, position));
  const std::int64_t unmerged_total =
      product(round_up(tokens.unmerged, page_tokens), sum(unmerged, position));
  const std::int64_t pending_total = product(round_up(tokens.pending, page_tokens), pending);
  return sum(sum(merged_total, unmerged_total), pending_total);
}

std::int64_t plain_layer_bytes(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype,
                               std::int64_t page_tokens) {
  return product(plan.plain_widths().total(), bytes_per_element(dtype),
                 round_up(num_tokens, page_tokens));
}

std::int64_t plan_bytes(const KvPlan& plan, std::int64_t num_tokens,
                        const std::vector<GroupTokens>& groups, KvDtype dtype,
                        std::int64_t page_tokens) {
  KVC_CHECK(groups.size() == plan.groups.size(), "{}: token counts of {} groups, the plan has {}",
            kSubject, groups.size(), plan.groups.size());
  std::int64_t total = 0;
  for (const KvSource source : plan.layers) {
    if (source == KvSource::kPlain) {
      total = sum(total, plain_layer_bytes(plan, num_tokens, dtype, page_tokens));
    }
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    total = sum(total, group_bytes(plan, static_cast<int>(i), groups[i], dtype, page_tokens));
  }
  return total;
}

std::int64_t original_bytes(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype) {
  return product(plan.num_layers(), plan.plain_widths().total(), num_tokens,
                 bytes_per_element(dtype));
}

}  // namespace kvc
