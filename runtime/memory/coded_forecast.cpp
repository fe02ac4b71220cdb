#include "runtime/memory/coded_forecast.h"

#include <algorithm>

namespace kvc {

CodedForecast::CodedForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                             std::int64_t page_tokens)
    : plan_(&plan), policy_(&policy), dtype_(dtype), page_tokens_(page_tokens) {
  for (const CodedLayers& layers : coded_layers(plan)) {
    units_.push_back({.layers = layers});
  }
}

CodedForecast::CodedForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens)
    : CodedForecast(cache.plan(), cache.policy(), dtype, page_tokens) {
  for (Unit& unit : units_) {
    const int layer = unit.layers.first_layer;
    const CodedStore& store = cache.coded(layer);
    unit.tokens = {store.num_rows(), store.num_codes()};
    unit.budget = cache.kept_coded(layer).budget;
  }
}

std::int64_t CodedForecast::bytes_of(const Unit& unit, const KeptCodedTokens& tokens) const {
  return kept_coded_bytes(*plan_, *policy_, unit.layers.first_layer, tokens, dtype_, page_tokens_);
}

std::int64_t CodedForecast::bytes_of(int first_layer) const {
  std::int64_t total = 0;
  for (const Unit& unit : units_) {
    total += unit.layers.first_layer == first_layer ? bytes_of(unit, unit.tokens) : 0;
  }
  return total;
}

std::int64_t CodedForecast::bytes() const {
  std::int64_t total = 0;
  for (const Unit& unit : units_) {
    total += bytes_of(unit, unit.tokens);
  }
  return total;
}

std::int64_t CodedForecast::budget_of(const Unit& unit, std::int64_t num_tokens) const {
  return shared_budget(*plan_, *policy_, num_tokens, unit.layers.first_layer,
                       unit.layers.num_layers);
}

void CodedForecast::leave(Unit& unit, bool is_step) const {
  const bool is_running = policy_->is_running();
  const std::int64_t full = is_running ? running_layout(*policy_, unit.budget).rows() : unit.budget;
  if ((is_step && !is_running) || unit.tokens.rows <= full) {
    return;
  }
  unit.tokens.rows = full;
  unit.tokens.codes = is_step ? unit.tokens.codes : 0;
}

std::int64_t CodedForecast::read(int first_layer, std::int64_t count, std::int64_t num_tokens) {
  std::int64_t most = 0;
  for (Unit& unit : units_) {
    if (unit.layers.first_layer == first_layer) {
      unit.tokens.rows += count;
      const std::int64_t full = bytes_of(unit, unit.tokens);
      unit.budget = budget_of(unit, num_tokens);
      leave(unit, false);
      most = std::max(full, bytes_of(unit, unit.tokens));
    }
  }
  return most;
}

void CodedForecast::append_one() {
  for (Unit& unit : units_) {
    ++unit.tokens.rows;
  }
}

void CodedForecast::leave_one() {
  for (Unit& unit : units_) {
    if (unit.budget == 0 && (policy_->budget.tokens > 0 || !policy_->has_scores())) {
      unit.budget = budget_of(unit, 0);
    }
    if (unit.budget > 0) {
      leave(unit, true);
    }
  }
}

// One store after the other: codes come before the exact rows that they are made of go.
std::int64_t CodedForecast::code() {
  std::int64_t now = bytes(), most = now;
  for (Unit& unit : units_) {
    const std::int64_t before = bytes_of(unit, unit.tokens);
    const std::int64_t codes = coded_tokens(*plan_, unit.tokens.rows);
    const std::int64_t made = std::max<std::int64_t>(0, codes - unit.tokens.codes);
    // Pages that earlier codes have begun hold some of the new ones.
    most = std::max(most, now + bytes_of(unit, {made, made}));
    unit.tokens.codes += made;
    now += bytes_of(unit, unit.tokens) - before;
  }
  return most;
}

}  // namespace kvc
