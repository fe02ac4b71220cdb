#include "runtime/attention/kept_group.h"

#include <cmath>
#include <utility>
#include <vector>

namespace kvc {
namespace {

// Attention that the layer's `query`, of the last tokens, gave to every row. [rows] float32
at::Tensor layer_scores(const GroupAttended& attended, const at::Tensor& query,
                        std::int64_t num_new, const SharedTokens& tokens) {
  const std::int64_t num_tokens = attended.positions[-1].item<std::int64_t>() + 1;
  return attention_scores({.policy = attended.policy,
                           .rule = attention_rule(attended.decoder.config(), attended.layer),
                           .num_new = num_new,
                           .query = query},
                          tokens.keys(num_tokens), tokens.slots(num_tokens))
      .sum(1);
}

void remove_rows(const TokenPolicy& policy, bool is_step, KeptGroup& kept, SharedTokens& tokens) {
  const std::vector<std::int64_t> leaving =
      leaving_rows({.policy = policy,
                    .budget = kept.budget,
                    .is_step = is_step,
                    .has_merged = tokens.has_merged(),
                    .is_laid_out = kept.is_laid_out},
                   tokens.positions(), policy.has_scores() ? tokens.scores() : kept.scores);
  kept.scores = at::Tensor();
  if (!leaving.empty()) {
    tokens.remove(leaving, is_step);
    kept.is_laid_out = true;
  }
}

void add_scores(const at::Tensor& of_layer, KeptGroup& kept) {
  kept.scores = kept.scores.defined() ? kept.scores + of_layer : of_layer;
}

// The scores so far and those of `num_new` tokens' queries.
void decay_scores(const TokenPolicy& policy, std::int64_t num_new, const KeptGroup& kept,
                  SharedTokens& tokens) {
  tokens.set_scores(tokens.scores() * std::pow(policy.lambda, static_cast<double>(num_new)) +
                    kept.scores);
}

void finish_step(const GroupAttended& attended, KeptGroup& kept, SharedTokens& tokens) {
  const TokenPolicy& policy = attended.policy;
  if (!policy.is_running()) {
    return;
  }
  if (policy.has_scores()) {
    add_scores(layer_scores(attended, attended.query, 1, tokens), kept);
  }
  if (!attended.is_last_layer()) {
    return;
  }
  if (kept.budget == 0 && (policy.budget.tokens > 0 || !policy.has_scores())) {
    kept.budget = attended.budget(0);
  }
  if (policy.has_scores()) {
    decay_scores(policy, 1, kept, tokens);
  }
  if (kept.budget > 0) {
    remove_rows(policy, true, kept, tokens);
  }
  kept.scores = at::Tensor();
}

}  // namespace

void finish_group(const GroupAttended& attended, KeptGroup& kept, SharedTokens& tokens) {
  const TokenPolicy& policy = attended.policy;
  if (attended.end == 0) {
    finish_step(attended, kept, tokens);
    return;
  }
  kept.held_queries.push_back(attended.query);
  kept.num_held += attended.query.size(0);
  if (attended.positions[-1].item<std::int64_t>() + 1 != attended.end) {
    return;
  }
  const std::int64_t num_new = std::exchange(kept.num_held, 0);
  const std::int64_t scoring = scoring_queries(policy, num_new);
  const at::Tensor held = at::cat(std::exchange(kept.held_queries, {}));
  if (scoring > 0) {
    add_scores(layer_scores(attended, held.slice(0, num_new - scoring), num_new, tokens), kept);
  }
  if (!attended.is_last_layer()) {
    return;
  }
  kept.budget = attended.budget(attended.end);
  kept.is_laid_out = false;
  if (policy.has_scores()) {
    decay_scores(policy, num_new, kept, tokens);
  }
  remove_rows(policy, false, kept, tokens);
}

}  // namespace kvc
