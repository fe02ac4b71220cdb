#include "runtime/memory/pair_forecast.h"

#include <algorithm>

namespace kvc {

PairForecast::PairForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                           std::int64_t page_tokens)
    : plan_(&plan), policy_(&policy), dtype_(dtype), page_tokens_(page_tokens) {
  if (plan.paired) {
    for (const int layer : plan.paired->first_layers) {
      units_.push_back({.first_layer = layer});
    }
  }
}

PairForecast::PairForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens)
    : PairForecast(cache.plan(), cache.policy(), dtype, page_tokens) {
  for (Unit& unit : units_) {
    unit.tokens = cache.pair(unit.first_layer).tokens();
    unit.budget = cache.kept_pair(unit.first_layer).budget;
    unit.generated = unit.tokens.exact;
  }
}

// Exact tokens take more than merged ones: of those that leave, the merged ones are taken to go first. What is really
// there may begin a page more of merged and of retained tokens.
std::int64_t PairForecast::bytes_of(const PairTokens& tokens) const {
  const auto of = [this](const PairTokens& some) {
    return kept_pair_bytes(*plan_, *policy_, some, dtype_, page_tokens_);
  };
  const std::int64_t most = tokens.merged + tokens.exact;
  PairTokens bound = tokens;
  bound.retained_keys = std::min(bound.retained_keys, most);
  bound.retained_values = std::min(bound.retained_values, most);
  const bool may_begin = bound.retained_keys > 0 && page_tokens_ > 1;
  return of(bound) + (may_begin ? of({.merged = 1, .retained_keys = 1, .retained_values = 1}) : 0);
}

std::int64_t PairForecast::bytes_of(int first_layer) const {
  std::int64_t total = 0;
  for (const Unit& unit : units_) {
    total += unit.first_layer == first_layer ? bytes_of(unit.tokens) : 0;
  }
  return total;
}

std::int64_t PairForecast::bytes() const {
  std::int64_t total = 0;
  for (const Unit& unit : units_) {
    total += bytes_of(unit.tokens);
  }
  return total;
}

void PairForecast::set_budget(Unit& unit, std::int64_t num_tokens) const {
  unit.budget = shared_budget(*plan_, *policy_, num_tokens, unit.first_layer, 2);
}

void PairForecast::leave(Unit& unit, bool is_step) const {
  const bool is_running = policy_->is_running();
  const std::int64_t full = is_running ? running_layout(*policy_, unit.budget).rows() : unit.budget;
  PairTokens& tokens = unit.tokens;
  if ((is_step && !is_running) || tokens.merged + tokens.exact <= full) {
    return;
  }
  tokens.merged = std::max<std::int64_t>(0, full - tokens.exact);
  tokens.exact = full - tokens.merged;
}

std::int64_t PairForecast::read(int first_layer, std::int64_t count, std::int64_t num_tokens) {
  std::int64_t most = 0;
  for (Unit& unit : units_) {
    if (unit.first_layer == first_layer) {
      unit.tokens.exact += count;
      most = bytes_of(unit.tokens);
      set_budget(unit, num_tokens);
      leave(unit, false);
    }
  }
  return most;
}

// What tokens become is stored before they go.
std::int64_t PairForecast::merge(int first_layer, std::int64_t count) {
  std::int64_t most = 0;
  for (Unit& unit : units_) {
    if (unit.first_layer != first_layer) {
      continue;
    }
    PairTokens& tokens = unit.tokens;
    const std::int64_t merged = std::min(count, tokens.merged + tokens.exact);
    const std::int64_t retained = plan_->paired->most_retained(merged);
    // A page more where earlier rows end within one.
    most = bytes_of(tokens) +
           bytes_of({.merged = merged, .retained_keys = retained, .retained_values = retained});
    const std::int64_t all = tokens.merged + tokens.exact;
    tokens.retained_keys += retained;
    tokens.retained_values += retained;
    // Of tokens that were exact before, all may still be there.
    tokens.exact = std::min(unit.generated, all);
    tokens.merged = all - tokens.exact;
  }
  return most;
}

void PairForecast::append_one() {
  for (Unit& unit : units_) {
    ++unit.tokens.exact;
    ++unit.generated;
  }
}

void PairForecast::leave_one() {
  for (Unit& unit : units_) {
    if (unit.budget == 0 && (policy_->budget.tokens > 0 || !policy_->has_scores())) {
      set_budget(unit, 0);
    }
    if (unit.budget > 0) {
      leave(unit, true);
    }
  }
}

}  // namespace kvc
