#include "runtime/memory/kept_forecast.h"

#include <algorithm>

#include "core/channel_pruning.h"

namespace kvc {

KeptForecast::KeptForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                           std::int64_t page_tokens)
    : plan_(plan), policy_(policy), dtype_(dtype), page_tokens_(page_tokens) {
  layers_.resize(static_cast<std::size_t>(plan.num_layers()));
}

KeptForecast::KeptForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens)
    : plan_(cache.plan()), policy_(cache.policy()), dtype_(dtype), page_tokens_(page_tokens) {
  for (const KeptLayer& layer : cache.all_kept()) {
    layers_.push_back({layer.rows.tokens(), 0, layer.budget, layer.is_laid_out});
  }
  for (const PrunedLayer& layer : cache.all_pruned()) {
    layers_.push_back({{.rows = layer.store.num_rows()}, layer.store.num_pruned()});
  }
}

std::int64_t KeptForecast::layer_bytes(const Layer& layer, KvDtype dtype) const {
  return policy_.prunes_channels()
             ? pruned_layer_bytes(plan_, policy_, layer.tokens.rows, layer.pruned_rows, dtype,
                                  page_tokens_)
             : kept_layer_bytes(plan_, policy_, layer.tokens, dtype, page_tokens_);
}

std::int64_t KeptForecast::bytes() const {
  std::int64_t total = 0;
  for (const Layer& layer : layers_) {
    total += layer_bytes(layer, dtype_);
  }
  return total;
}

// The policies' rules, as counts.
std::int64_t KeptForecast::reduce(Layer& layer) const {
  KeptTokens& tokens = layer.tokens;
  if (policy_.prunes_channels()) {
    const std::int64_t whole = tokens.rows - layer.pruned_rows, before = layer_bytes(layer, dtype_);
    layer.pruned_rows = std::max(layer.pruned_rows, pruned_rows_of(policy_, plan_, tokens.rows));
    // The rows that lose channels are there twice for a while.
    return layer_bytes(
               {.tokens = {.rows = layer.pruned_rows + whole}, .pruned_rows = layer.pruned_rows},
               dtype_) -
           before;
  }
  if (!policy_.is_running()) {
    tokens.rows = std::min(tokens.rows, layer.budget);
    return 0;
  }
  const RunningLayout layout = running_layout(policy_, layer.budget);
  const bool starts = tokens.residual_slots == 0 && !layer.is_laid_out;
  if (tokens.rows <= (starts ? layer.budget : layout.rows())) {
    return 0;
  }
  const KeptTokens added{
      .coded_rows = layer.is_laid_out || !is_integer(dtype_) ? 0 : layout.context,
      .residual_slots = policy_.residual_slots - tokens.residual_slots};
  tokens = {.rows = layout.rows(),
            .reserved_rows = layout.rows() + 1,
            .coded_rows = is_integer(dtype_) ? layout.context : 0,
            .residual_slots = policy_.residual_slots};
  layer.is_laid_out = true;
  return added_bytes(added);
}

// Slots, and codes beside the exact rows that they are made of.
std::int64_t KeptForecast::added_bytes(const KeptTokens& added) const {
  return kept_layer_bytes(plan_, policy_,
                          {.rows = added.coded_rows,
                           .reserved_rows = 0,
                           .coded_rows = added.coded_rows,
                           .residual_slots = added.residual_slots},
                          dtype_, page_tokens_);
}

std::int64_t KeptForecast::read(std::int64_t count, std::int64_t num_tokens) {
  const KvDtype exact = is_integer(dtype_) ? KvDtype::kFloat16 : dtype_;
  std::int64_t now = bytes(), most = now;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const std::int64_t before = layer_bytes(layer, dtype_);
    layer.tokens.rows += count;
    const std::int64_t full = now - before + layer_bytes(layer, exact);
    layer.budget = layer_budget(policy_, num_tokens, static_cast<int>(i), plan_.num_layers());
    layer.is_laid_out = false;
    const std::int64_t added = reduce(layer);
    most = std::max(most, full + added);
    now += layer_bytes(layer, policy_.is_running() ? dtype_ : exact) - before;
  }
  std::int64_t codes = 0;  // of one layer beside its exact rows
  for (const Layer& layer : layers_) {
    codes = std::max(codes, layer_bytes(layer, dtype_));
  }
  return std::max(most, now + (is_integer(dtype_) && !policy_.is_running() ? codes : 0));
}

std::int64_t KeptForecast::extend(std::int64_t count) {
  std::int64_t most = bytes();
  for (std::int64_t step = 0; step < count; ++step) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      Layer& layer = layers_[i];
      if (layer.budget == 0 && (policy_.budget.tokens > 0 || !policy_.has_scores())) {
        layer.budget = layer_budget(policy_, 0, static_cast<int>(i), plan_.num_layers());
      }
      ++layer.tokens.rows;
    }
    std::int64_t now = bytes();
    for (Layer& layer : layers_) {
      if (policy_.is_running() && layer.budget > 0) {
        now += reduce(layer);
      }
    }
    most = std::max(most, now);
  }
  return std::max(most, bytes());
}

}  // namespace kvc
