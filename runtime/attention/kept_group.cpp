#include "runtime/attention/kept_group.h"

#include <cmath>
#include <utility>
#include <vector>

namespace kvc {
namespace {

// Attention that the layer's `query`, of the last tokens, gave to every row.
at::Tensor layer_scores(const GroupAttended& attended, const at::Tensor& query,
                        std::int64_t num_new, const SharedTokens& tokens) {
  const std::int64_t num_tokens = attended.positions[-1].item<std::int64_t>() + 1;
  return tokens.summed(
      attention_scores({.policy = attended.policy,
                        .rule = attention_rule(attended.decoder.config(), attended.layer),
                        .num_new = num_new,
                        .query = query},
                       tokens.keys(num_tokens), tokens.slots(num_tokens)));
}

void add_scores(const at::Tensor& of_layer, KeptGroup& kept) {
  kept.scores = kept.scores.defined() ? kept.scores + of_layer : of_layer;
}

// The scores so far and those of new tokens' queries.
void decay_scores(double decay, const KeptGroup& kept, SharedTokens& tokens) {
  if (kept.scores.defined()) {
    tokens.set_scores(tokens.scores() * decay + kept.scores);
  }
}

void finish_step(const GroupAttended& attended, KeptGroup& kept, SharedTokens& tokens) {
  const TokenPolicy& policy = attended.policy;
  if (!policy.is_running()) {
    return;
  }
  if (policy.has_scores() && !attended.is_scored) {
    add_scores(layer_scores(attended, attended.query, 1, tokens), kept);
  }
  if (!attended.is_last_layer()) {
    return;
  }
  kept.update(attended.plan, policy, attended.layers, attended.end);
  decay_scores(tokens.scores_steps() ? 1 : policy.lambda, kept, tokens);
  tokens.choose(policy, true, kept);
  kept.scores = at::Tensor();
}

// Only the last queries of a prompt score; the memory of the others is released.
void hold(const at::Tensor& query, const TokenPolicy& policy, KeptGroup& kept) {
  kept.held_queries.push_back(query);
  kept.num_read += query.size(0);
  std::int64_t spare = -scoring_queries(policy, kept.num_read);
  for (const at::Tensor& held : kept.held_queries) {
    spare += held.size(0);
  }
  while (spare > 0) {
    at::Tensor& oldest = kept.held_queries.front();
    if (oldest.size(0) > spare) {
      oldest = oldest.slice(0, spare).clone();
      return;
    }
    spare -= oldest.size(0);
    kept.held_queries.erase(kept.held_queries.begin());
  }
}

// Rows of policies that vote stay as they are while there is room.
bool needs_scores(const GroupAttended& attended, const SharedTokens& tokens) {
  const TokenPolicy& policy = attended.policy;
  return policy.has_scores() ||
         (!policy.is_running() &&
          tokens.num_rows() > shared_budget(attended.plan, policy, attended.end, attended.layers));
}

}  // namespace

void TokensOfAllHeads::choose(const TokenPolicy& policy, bool is_step, KeptGroup& kept) {
  if (kept.leaving(policy, num_rows(), is_step, has_merged()) > 0) {
    const RowChoice choice{.policy = policy,
                           .budget = kept.budget,
                           .spares_newcomer = kept.is_laid_out && policy.released_step};
    const at::Tensor ranks = policy.has_scores() ? scores() : kept.scores;
    remove(choose_rows(choice, positions(), ranks).leaving, is_step);
    kept.is_laid_out = true;
  }
}

void finish_group(const GroupAttended& attended, KeptGroup& kept, SharedTokens& tokens) {
  const TokenPolicy& policy = attended.policy;
  if (attended.end == 0) {
    finish_step(attended, kept, tokens);
    return;
  }
  hold(attended.query, policy, kept);
  if (attended.positions[-1].item<std::int64_t>() + 1 != attended.end && !policy.compress_chunks) {
    return;
  }
  const std::int64_t num_new = std::exchange(kept.num_read, 0);
  const std::vector<at::Tensor> scoring = std::exchange(kept.held_queries, {});
  if (needs_scores(attended, tokens)) {
    add_scores(layer_scores(attended, at::cat(scoring), num_new, tokens), kept);
  }
  if (!attended.is_last_layer()) {
    return;
  }
  kept.update(attended.plan, policy, attended.layers, attended.end);
  if (policy.has_scores()) {
    decay_scores(std::pow(policy.lambda, static_cast<double>(num_new)), kept, tokens);
  }
  tokens.choose(policy, false, kept);
  kept.scores = at::Tensor();
}

}  // namespace kvc
