// How many tokens layers hold, keep and decide: rules of counts that the stores, the GPU's caches and the forecasts
// (runtime/memory/) share. Tokens that become codes are tokens_in_blocks() of the exact ones
// (core/kv_plan_bytes.h).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/kv_plan.h"
#include "core/token_policy.h"

namespace kvc {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// True if a group decides which tokens merge. One whose projections are replaced stores every token
// as a latent at once.
bool decides(const LatentGroup& group);
// What a group, or each of them, holds once it has read `count` more tokens.
void append_tokens(const LatentGroup& group, std::int64_t count, GroupTokens& tokens);
std::vector<GroupTokens> tokens_with_prompt(const KvPlan& plan, std::vector<GroupTokens> tokens,
                                            std::int64_t count);
// How many of a group's oldest `pending` tokens that are no sinks are due: while tokens are generated a whole block that
// left the window, at a prompt's end all that did.
std::int64_t due_tokens(const KvPlan& plan, std::int64_t pending, bool prompt_ended);
std::vector<std::int64_t> due_tokens(const KvPlan& plan, const std::vector<GroupTokens>& tokens,
                                     bool prompt_ended);
// Tokens that can still be appended before such a block, or of `exact` tokens one that becomes codes, has left the window.
std::int64_t tokens_until_due(const KvPlan& plan, const LatentGroup& group,
                              const GroupTokens& tokens);
std::int64_t tokens_until_codes(const KvPlan& plan, std::int64_t exact);
// How many of `left` tokens a layer stores after so many, where it reads a prompt through codes, before some become
// codes.
std::int64_t coded_prompt_step(std::int64_t num_tokens, std::int64_t left);
// The largest number of one layer's tokens that are stored twice, old and new, while `count` tokens
// are decided.
std::int64_t rows_decided_at_once(std::int64_t count);

// What a token policy leaves to layers that keep the same tokens.
struct KeptBudget {
  std::int64_t budget = 0;  // tokens, once a prompt has been read
  // Tokens have left under a fixed budget: rows of plain layers have RunningLayout's order
  // (runtime/policies/kept_policy.cpp).
  bool is_laid_out = false;

  // After a prompt, at whose end the sequence has so many tokens; 0: after a generated token, before any prompt of which
  // the budget would be a share.
  void update(const KvPlan& plan, const TokenPolicy& policy, const std::vector<int>& layers,
              std::int64_t prompt_end);
  // How many of `rows` tokens leave then. has_slots: some have been merged, whose slots take places of the context.
  std::int64_t leaving(const TokenPolicy& policy, std::int64_t rows, bool is_step,
                       bool has_slots) const;
};

}  // namespace kvc
