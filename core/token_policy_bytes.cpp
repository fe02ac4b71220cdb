// What token policies keep, as numbers.
#include <algorithm>
#include <cmath>

#include "core/arithmetic.h"
#include "core/token_policy.h"

namespace kvc {
namespace {

constexpr std::int64_t kLeastRing = 2;

}  // namespace

std::int64_t ring_tokens(const TokenPolicy& policy, std::int64_t budget) {
  return std::max(kLeastRing,
                  static_cast<std::int64_t>(policy.ring_share * static_cast<double>(budget)));
}

std::int64_t TokenBudget::of(std::int64_t prompt_tokens) const {
  return tokens > 0 ? tokens
                    : static_cast<std::int64_t>(share * static_cast<double>(prompt_tokens));
}

std::int64_t TokenPolicy::least_budget() const {
  return is_running() ? residual_slots + sink_tokens + kLeastRing + 1 : window_tokens + 1;
}

RunningLayout running_layout(const TokenPolicy& policy, std::int64_t budget) {
  if (policy.keeps_last()) {
    return {.sinks = policy.sink_tokens, .ring = policy.window_tokens};
  }
  const std::int64_t room = budget - policy.residual_slots - policy.sink_tokens;
  const std::int64_t ring = std::min(ring_tokens(policy, budget), room - 1);
  return {.sinks = policy.sink_tokens, .context = room - ring, .ring = ring};
}

std::int64_t layer_budget(const TokenPolicy& policy, std::int64_t prompt_tokens, int layer,
                          int num_layers) {
  if (policy.keeps_last()) {
    return policy.sink_tokens + policy.window_tokens;
  }
  std::int64_t budget = policy.budget.of(prompt_tokens);
  if (policy.narrows() && num_layers > 1) {
    // Arithmetic from the most of the first layer to the least of the last, the budget on average.
    const double voted =
        static_cast<double>(std::max<std::int64_t>(0, budget - policy.window_tokens));
    const double least = voted / policy.beta, most = 2 * voted - least;
    budget =
        policy.window_tokens +
        static_cast<std::int64_t>(std::llround(most - (most - least) * layer / (num_layers - 1)));
  }
  return std::max(budget, policy.least_budget());
}

std::int64_t kept_layer_bytes(const KvPlan& plan, const TokenPolicy& policy,
                              const KeptTokens& tokens, KvDtype dtype, std::int64_t page_tokens) {
  const std::int64_t rows = std::max(tokens.rows, tokens.reserved_rows);
  const bool one_choice = policy.keeps_last() || tokens.shares_heads;
  const std::int64_t heads = tokens.follows ? 0 : one_choice ? 1 : plan.num_kv_heads;
  const std::int64_t columns = heads * policy.num_columns();
  const bool by_row = policy.is_running() && tokens.has_left;
  const std::int64_t key_values =
      plain_layer_bytes(plan, by_row ? 0 : tokens.codes, rows - tokens.codes, dtype, page_tokens) +
      (by_row ? 2 * quantised_value_bytes(round_up(tokens.codes, page_tokens), plan.kv_dim(),
                                          plan.head_dim, dtype)
              : 0);
  const std::int64_t of_rows = checked_add(
      key_values, checked_mul(round_up(rows, page_tokens), 4 * columns, "KV bytes"), "KV bytes");
  return of_rows + tokens.residual_slots * plan.num_kv_heads * 4 * (2 * plan.head_dim + 1);
}

std::int64_t shared_budget(const KvPlan& plan, const TokenPolicy& policy,
                           std::int64_t prompt_tokens, const std::vector<int>& layers) {
  std::int64_t sum = 0;
  for (const int layer : layers) {
    sum += layer_budget(policy, prompt_tokens, layer, plan.num_layers());
  }
  return sum / static_cast<std::int64_t>(layers.size());
}

std::int64_t kept_coded_bytes(const KvPlan& plan, const TokenPolicy& policy, int first_layer,
                              const KeptCodedTokens& tokens, KvDtype dtype,
                              std::int64_t page_tokens) {
  const std::int64_t exact = round_up(tokens.rows - tokens.codes, page_tokens);
  std::int64_t bytes = 4 * policy.num_columns() * (round_up(tokens.codes, page_tokens) + exact);
  for (const CodedBlock& block : plan.coded) {
    if (block.first_layer != first_layer) {
      continue;
    }
    bytes += block_code_bytes(block, tokens.codes, page_tokens) +
             exact * coded_channels(plan, block) * bytes_per_element(dtype);
  }
  return bytes;
}

std::int64_t kept_group_bytes(const KvPlan& plan, const TokenPolicy& policy, int group,
                              const KeptGroupTokens& kept, KvDtype dtype,
                              std::int64_t page_tokens) {
  const LatentGroup& spec = plan.groups.at(static_cast<std::size_t>(group));
  const GroupTokens& tokens = kept.tokens;
  const std::int64_t decided =
      round_up(tokens.merged, page_tokens) + round_up(tokens.unmerged, page_tokens);
  const std::int64_t pending = round_up(tokens.pending, page_tokens);
  // What group_bytes counts of positions.
  const bool has_positions = plan.compression.granularity == Granularity::kToken &&
                             plan.compression.rule != MergeRule::kNone;
  std::int64_t bytes = group_bytes(plan, group, tokens, dtype, page_tokens);
  if (kept.row_codes > 0) {
    GroupTokens others = tokens;
    others.unmerged = 0;
    const std::int64_t exact = tokens.unmerged - kept.row_codes;
    bytes = group_bytes(plan, group, others, dtype, page_tokens) +
            (has_positions ? 4 * round_up(tokens.unmerged, page_tokens) : 0) +
            spec.num_layers *
                (2 * quantised_value_bytes(round_up(kept.row_codes, page_tokens), plan.kv_dim(),
                                           plan.head_dim, dtype) +
                 2 * plan.kv_dim() * bytes_per_element(dtype) * round_up(exact, page_tokens));
  }
  bytes += 4 * policy.num_columns() * (decided + pending);  // positions of the decided are counted
  bytes -= has_positions && !policy.is_full() ? 4 * decided : 0;
  return bytes + kept.residual_slots * (spec.rank + 2) * 4;
}

std::int64_t kept_channels(const TokenPolicy& policy, std::int64_t head_dim) {
  const auto dropped = std::llround(policy.pruned_share * static_cast<double>(head_dim));
  return std::max<std::int64_t>(1, head_dim - dropped);
}

std::int64_t pruned_layer_bytes(const KvPlan& plan, const TokenPolicy& policy, std::int64_t rows,
                                std::int64_t pruned_rows, KvDtype dtype, std::int64_t page_tokens) {
  constexpr const char* kSubject = "KV bytes";
  const std::int64_t whole = plain_layer_bytes(plan, rows - pruned_rows, dtype, page_tokens);
  if (pruned_rows == 0) {
    return whole;
  }
  const std::int64_t row_bytes =
      checked_mul(plan.num_kv_heads * bytes_per_element(dtype),
                  kept_channels(policy, plan.head_dim) + plan.head_dim, kSubject);
  const std::int64_t allocated = round_up(pruned_rows, page_tokens);
  return checked_add(checked_add(whole, checked_mul(allocated, row_bytes, kSubject), kSubject),
                     plan.num_kv_heads * ((plan.head_dim + 7) / 8), kSubject);
}

std::int64_t pruned_rows_of(const TokenPolicy& policy, const KvPlan& plan, std::int64_t rows) {
  return kept_channels(policy, plan.head_dim) == plan.head_dim
             ? 0
             : std::max<std::int64_t>(0, rows - policy.window_tokens);
}

}  // namespace kvc
