#include "runtime/attention/kept_group.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "runtime/attention/cache_segments.h"
#include "runtime/compression/leaving_latents.h"
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

bool is_last_layer(const GroupLayer& layer) {
  return layer.index + 1 == layer.plan.groups[static_cast<std::size_t>(layer.group)].num_layers;
}

// Attention that the layer's `query`, of the last tokens, gave to every row. [rows] float32
at::Tensor layer_scores(const GroupAttended& attended, const at::Tensor& query,
                        std::int64_t num_new, const LatentStore& store) {
  const GroupLayer& layer = attended.layer;
  const std::int64_t num_tokens = attended.positions[-1].item<std::int64_t>() + 1;
  std::vector<at::Tensor> keys;
  for (const Segment& segment : cache_segments(attended.decoder, layer.plan, layer.group,
                                               layer.index, layer.factors, store, num_tokens, 1)) {
    keys.push_back(segment.key.to(at::kFloat));
  }
  SlotKeys slots;
  if (!store.slots().empty()) {
    const Segment segment = slot_segment(attended.decoder, layer.layer(), layer.factors,
                                         merged_layer(layer.factors, layer.index), store.slots(),
                                         layer.alpha, num_tokens);
    slots = {segment.key.to(at::kFloat), segment.score_bias};
  }
  return attention_scores({.policy = attended.policy,
                           .rule = attention_rule(attended.decoder.config(), layer.layer()),
                           .num_new = num_new,
                           .query = query},
                          at::cat(keys), slots)
      .sum(1);
}

void remove_rows(const GroupAttended& attended, bool is_step, KvCache& cache) {
  const GroupLayer& layer = attended.layer;
  KeptGroup& kept = cache.kept_group(layer.group);
  LatentStore& store = cache.group(layer.group);
  const TokenPolicy& policy = attended.policy;
  const std::vector<std::int64_t> leaving =
      leaving_rows({.policy = policy,
                    .budget = kept.budget,
                    .is_step = is_step,
                    .has_merged = !store.slots().empty(),
                    .is_laid_out = kept.is_laid_out},
                   store.positions(), policy.has_scores() ? store.scores() : kept.scores);
  kept.scores = at::Tensor();
  if (leaving.empty()) {
    return;
  }
  merge_into_slots({attended.decoder, layer.plan, layer.group, layer.factors, store}, leaving,
                   !is_step && policy.contiguous_merge);
  std::vector<bool> leaves(static_cast<std::size_t>(store.num_rows()));
  for (const std::int64_t row : leaving) {
    leaves[static_cast<std::size_t>(row)] = true;
  }
  std::vector<std::int64_t> staying;
  for (std::size_t row = 0; row < leaves.size(); ++row) {
    if (!leaves[row]) {
      staying.push_back(static_cast<std::int64_t>(row));
    }
  }
  store.keep(staying);
  kept.is_laid_out = true;
}

void add_scores(const at::Tensor& of_layer, KeptGroup& kept) {
  kept.scores = kept.scores.defined() ? kept.scores + of_layer : of_layer;
}

// The scores so far and those of `num_new` tokens' queries.
void decay_scores(const TokenPolicy& policy, std::int64_t num_new, const KeptGroup& kept,
                  LatentStore& store) {
  store.set_scores(store.scores() * std::pow(policy.lambda, static_cast<double>(num_new)) +
                   kept.scores);
}

void finish_step(const GroupAttended& attended, KvCache& cache) {
  const TokenPolicy& policy = attended.policy;
  KeptGroup& kept = cache.kept_group(attended.layer.group);
  LatentStore& store = cache.group(attended.layer.group);
  if (!policy.is_running()) {
    return;
  }
  if (policy.has_scores()) {
    add_scores(layer_scores(attended, attended.query, 1, store), kept);
  }
  if (!is_last_layer(attended.layer)) {
    return;
  }
  if (kept.budget == 0 && (policy.budget.tokens > 0 || !policy.has_scores())) {
    kept.budget = group_budget(attended.layer.plan, policy, 0, attended.layer.group);
  }
  if (policy.has_scores()) {
    decay_scores(policy, 1, kept, store);
  }
  if (kept.budget > 0) {
    remove_rows(attended, true, cache);
  }
  kept.scores = at::Tensor();
}

}  // namespace

void finish_group(const GroupAttended& attended, KvCache& cache) {
  const TokenPolicy& policy = attended.policy;
  if (attended.end == 0) {
    finish_step(attended, cache);
    return;
  }
  const GroupLayer& layer = attended.layer;
  KeptGroup& kept = cache.kept_group(layer.group);
  LatentStore& store = cache.group(layer.group);
  kept.held_queries.push_back(attended.query);
  kept.num_held += attended.query.size(0);
  if (attended.positions[-1].item<std::int64_t>() + 1 != attended.end) {
    return;
  }
  const std::int64_t num_new = std::exchange(kept.num_held, 0);
  const std::int64_t scoring = scoring_queries(policy, num_new);
  const at::Tensor held = at::cat(std::exchange(kept.held_queries, {}));
  if (scoring > 0) {
    add_scores(layer_scores(attended, held.slice(0, num_new - scoring), num_new, store), kept);
  }
  if (!is_last_layer(layer)) {
    return;
  }
  kept.budget = group_budget(layer.plan, policy, attended.end, layer.group);
  kept.is_laid_out = false;
  if (policy.has_scores()) {
    decay_scores(policy, num_new, kept, store);
  }
  remove_rows(attended, false, cache);
}

}  // namespace kvc
