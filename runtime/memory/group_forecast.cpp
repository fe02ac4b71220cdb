#include "runtime/memory/group_forecast.h"

#include <algorithm>
#include <utility>

#include "runtime/compression/compression.h"
#include "runtime/policies/merge_selection.h"
#include "runtime/policies/principal_policy.h"

namespace kvc {

GroupForecast::GroupForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                             std::int64_t page_tokens)
    : plan_(&plan),
      policy_(&policy),
      dtype_(dtype),
      page_tokens_(page_tokens),
      groups_(plan.groups.size()) {}

GroupForecast::GroupForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens)
    : GroupForecast(cache.plan(), cache.policy(), dtype, page_tokens) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const KeptGroup& kept = cache.kept_group(static_cast<int>(i));
    groups_[i] = {cache.group(static_cast<int>(i)).kept_tokens(), kept.budget, kept.is_laid_out};
  }
}

std::int64_t GroupForecast::bytes_of(int group, const KeptGroupTokens& kept) const {
  return kept_group_bytes(*plan_, *policy_, group, kept, dtype_, page_tokens_);
}

// Where the text decides which tokens are latents: as many exact tokens as there can be, and a begun page and block of
// either form of the others.
std::int64_t GroupForecast::bytes_of(int index) const {
  const Group& group = groups_[static_cast<std::size_t>(index)];
  KeptGroupTokens kept = group.kept;
  const bool leaves_later = policy_->is_running() && group.is_laid_out;
  const bool merges_some = plan_->compression.rule != MergeRule::kNone;
  if (!group.is_compressed || (!leaves_later && !merges_some) ||
      !decides(plan_->groups[static_cast<std::size_t>(index)])) {
    return bytes_of(index, kept);
  }
  if (leaves_later) {
    const std::int64_t block = generated_block(*plan_);
    const std::int64_t rows = group.rows();
    const std::int64_t window = plan_->compression.exact_tokens();
    kept.tokens.pending = block < rows ? std::min(rows, window + block) : rows;
    const std::int64_t others = rows - kept.tokens.pending;
    kept.tokens.unmerged = std::min(group.kept.tokens.unmerged, others);
    kept.tokens.merged = others - kept.tokens.unmerged;
  }
  const bool has_others = kept.tokens.unmerged + kept.tokens.merged > 0;
  std::int64_t codes = 0;
  if (is_integer(dtype_) && kept.tokens.unmerged > 0) {
    const std::int64_t whole = kept.tokens.unmerged / kQuantisedTokens * kQuantisedTokens;
    kept.tokens.unmerged = whole + kQuantisedTokens - 1;
    if (leaves_later) {  // of a layer that codes its rows apart
      kept.row_codes = whole;
      codes = quantised_value_bytes(whole, plan_->kv_dim(), plan_->head_dim, dtype_);
    }
  }
  for (std::int64_t* count : {&kept.tokens.unmerged, &kept.tokens.merged}) {
    *count += has_others ? page_tokens_ - 1 : 0;
  }
  return bytes_of(index, kept) + codes;
}

std::int64_t GroupForecast::bytes() const {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    total += bytes_of(static_cast<int>(i));
  }
  return total;
}

// Merged tokens first, exact ones last.
void GroupForecast::leave(Group& group, bool is_step) const {
  const bool is_running = policy_->is_running();
  const std::int64_t full =
      is_running ? running_layout(*policy_, group.budget).rows() : group.budget;
  const bool starts = group.kept.residual_slots == 0 && !(is_step && group.is_laid_out);
  if ((is_step && !is_running) || group.rows() <= (is_running && !starts ? full : group.budget)) {
    return;
  }
  std::int64_t left = group.rows() - full;
  GroupTokens& tokens = group.kept.tokens;
  for (std::int64_t* count : {&tokens.merged, &tokens.unmerged, &tokens.pending}) {
    const std::int64_t leaving = std::min(*count, left);
    *count -= leaving;
    left -= leaving;
  }
  group.kept.residual_slots = policy_->residual_slots;
  group.is_laid_out = true;
}

std::int64_t GroupForecast::read(int index, std::int64_t count, std::int64_t num_tokens) {
  Group& group = groups_[static_cast<std::size_t>(index)];
  const LatentGroup& spec = plan_->groups[static_cast<std::size_t>(index)];
  (decides(spec) ? group.kept.tokens.pending : group.kept.tokens.unmerged) += count;
  group.is_laid_out = group.is_compressed = false;
  group.budget = group_budget(*plan_, *policy_, num_tokens, index);
  KeptGroupTokens with_slots = group.kept;
  with_slots.residual_slots = policy_->residual_slots;
  const std::int64_t full = bytes_of(index, with_slots);
  leave(group, false);
  return std::max(full, bytes_of(index));
}

void GroupForecast::append_one() {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    GroupTokens& tokens = groups_[i].kept.tokens;
    ++(decides(plan_->groups[i]) ? tokens.pending : tokens.unmerged);
  }
}

void GroupForecast::leave_one() {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    if (group.budget == 0 && (policy_->budget.tokens > 0 || !policy_->has_scores())) {
      group.budget = group_budget(*plan_, *policy_, 0, static_cast<int>(i));
    }
    if (group.budget > 0) {
      leave(group, true);
    }
  }
}

std::vector<std::int64_t> GroupForecast::due(bool prompt_ended) const {
  std::vector<std::int64_t> counts;
  for (const Group& group : groups_) {
    counts.push_back(due_tokens(*plan_, group.kept.tokens.pending, prompt_ended));
  }
  return counts;
}

// Counts after the best candidates of groups of weights were merged.
std::vector<GroupTokens> GroupForecast::merged(const std::vector<std::int64_t>& counts,
                                               std::vector<GroupTokens> tokens,
                                               std::vector<std::int64_t> layer_tokens) const {
  MergeCandidates candidates{.num_candidates = counts, .tokens = std::move(tokens), .scores = {}};
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    candidates.scores.emplace_back(static_cast<std::size_t>(counts[i]), 0.0f);
    candidates.tokens[i].pending -= counts[i];
    candidates.tokens[i].unmerged += counts[i];
    const LatentGroup& spec = plan_->groups[i];
    std::fill_n(layer_tokens.begin() + spec.first_layer, spec.num_layers, groups_[i].rows());
  }
  candidates.layer_tokens = std::move(layer_tokens);
  const auto merges = select_merges(*plan_, candidates, dtype_, page_tokens_);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::int64_t count = std::count(merges[i].begin(), merges[i].end(), true);
    candidates.tokens[i].merged += count;
    candidates.tokens[i].unmerged -= count;
  }
  return candidates.tokens;
}

// Unmerged tokens are exact before they become codes.
std::int64_t GroupForecast::before_codes() const {
  std::int64_t total = 0;
  for (std::size_t i = 0; is_integer(dtype_) && i < groups_.size(); ++i) {
    const int index = static_cast<int>(i);
    KeptGroupTokens exact = groups_[i].kept;
    exact.tokens.pending +=
        exact.tokens.unmerged + (exact.tokens.unmerged > 0 ? page_tokens_ - 1 : 0);
    exact.tokens.unmerged = 0;
    total += std::max(bytes_of(index), bytes_of(index, exact));
  }
  return total;
}

std::int64_t GroupForecast::compress(bool prompt_ended, std::vector<std::int64_t> layer_tokens) {
  const std::int64_t now = bytes();
  for (Group& group : groups_) {
    group.is_compressed = true;
  }
  const std::vector<std::int64_t> counts = due(prompt_ended);
  if (std::all_of(counts.begin(), counts.end(), [](std::int64_t count) { return count == 0; })) {
    return now;
  }
  std::vector<GroupTokens> tokens;
  std::int64_t twice = 0;  // rows of a layer that are held before and after
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    tokens.push_back(groups_[i].kept.tokens);
    const KeptGroupTokens rows{.tokens = {.unmerged = rows_decided_at_once(counts[i])}};
    twice = std::max(twice, bytes_of(static_cast<int>(i), rows) / plan_->groups[i].num_layers);
  }
  if (has_basis(*plan_, LatentBasis::kWeights)) {
    tokens = merged(counts, std::move(tokens), std::move(layer_tokens));
  } else {
    apply_principal_step(*plan_, counts, dtype_, tokens);
    twice = 0;  // a group's old rows go before its new ones
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].kept.tokens = tokens[i];
  }
  return std::max({now, bytes(), before_codes()}) + twice;
}

}  // namespace kvc
