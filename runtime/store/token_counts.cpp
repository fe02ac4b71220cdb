#include "runtime/store/token_counts.h"

#include <algorithm>

#include "runtime/store/row_store.h"

namespace kvc {
namespace {

std::int64_t outside(const KvPlan& plan) {
  return plan.compression.sink_tokens + plan.compression.window_tokens;
}

// Tokens that generation decides at a time; kNever where it decides none.
std::int64_t generated_block(const KvPlan& plan) {
  return plan.request && !plan.request->compress_generated ? kNever : plan.compression.block_tokens;
}

}  // namespace

bool decides(const LatentGroup& group) { return !group.replaces_projections(); }

void append_tokens(const LatentGroup& group, std::int64_t count, GroupTokens& tokens) {
  (decides(group) ? tokens.pending : tokens.unmerged) += count;
}

std::vector<GroupTokens> tokens_with_prompt(const KvPlan& plan, std::vector<GroupTokens> tokens,
                                            std::int64_t count) {
  for (std::size_t group = 0; group < tokens.size(); ++group) {
    append_tokens(plan.groups[group], count, tokens[group]);
  }
  return tokens;
}

std::int64_t due_tokens(const KvPlan& plan, std::int64_t pending, bool prompt_ended) {
  const std::int64_t left = std::max<std::int64_t>(0, pending - outside(plan));
  const std::int64_t block = generated_block(plan);
  return prompt_ended ? left : left >= block ? block : 0;
}

std::vector<std::int64_t> due_tokens(const KvPlan& plan, const std::vector<GroupTokens>& tokens,
                                     bool prompt_ended) {
  std::vector<std::int64_t> due;
  for (const GroupTokens& group : tokens) {
    due.push_back(due_tokens(plan, group.pending, prompt_ended));
  }
  return due;
}

std::int64_t tokens_until_due(const KvPlan& plan, const LatentGroup& group,
                              const GroupTokens& tokens) {
  const std::int64_t block = generated_block(plan);
  return decides(group) && block != kNever ? outside(plan) + block - tokens.pending : kNever;
}

std::int64_t tokens_until_codes(const KvPlan& plan, std::int64_t exact) {
  return outside(plan) + kQuantisedTokens - exact;
}

std::int64_t coded_prompt_step(std::int64_t num_tokens, std::int64_t left) {
  return std::min(left, kChunkTokens - num_tokens % kChunkTokens);
}

std::int64_t rows_decided_at_once(std::int64_t count) {
  constexpr std::int64_t kParts = 8, kLeast = 256;
  return std::min(count, std::max(kLeast, (count + kParts - 1) / kParts));
}

void KeptBudget::update(const KvPlan& plan, const TokenPolicy& policy,
                        const std::vector<int>& layers, std::int64_t prompt_end) {
  const bool is_share = policy.budget.tokens == 0 && policy.has_scores();
  if (!policy.is_full() && !policy.prunes_channels() &&
      (prompt_end > 0 || (budget == 0 && !is_share))) {
    budget = shared_budget(plan, policy, prompt_end, layers);
    is_laid_out = false;
  }
}

std::int64_t KeptBudget::leaving(const TokenPolicy& policy, std::int64_t rows, bool is_step,
                                 bool has_slots) const {
  if (budget == 0 || (is_step && !policy.is_running())) {
    return 0;
  }
  const std::int64_t full = policy.is_running() ? running_layout(policy, budget).rows() : budget;
  const std::int64_t room = has_slots || is_laid_out ? full : budget;
  return rows > room ? rows - full : 0;
}

}  // namespace kvc
