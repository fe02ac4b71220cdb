#include "runtime/memory/kept_forecast.h"

#include <algorithm>

#include "core/channel_pruning.h"

namespace kvc {

KeptForecast::KeptForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                           std::int64_t page_tokens)
    : plan_(plan),
      policy_(policy),
      dtype_(dtype),
      page_tokens_(page_tokens),
      groups_(plan, policy, dtype, page_tokens),
      coded_(plan, policy, dtype, page_tokens) {
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    if (plan.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain) {
      layers_.push_back({.layer = layer});
    }
  }
}

KeptForecast::KeptForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens)
    : KeptForecast(cache.plan(), cache.policy(), dtype, page_tokens) {
  groups_ = {cache, dtype, page_tokens};
  coded_ = {cache, dtype, page_tokens};
  for (Layer& layer : layers_) {
    if (policy_.prunes_channels()) {
      const PrunedStore& store = cache.pruned_layer(layer.layer).store;
      layer.tokens.rows = store.num_rows();
      layer.pruned_rows = store.num_pruned();
    } else {
      const KeptLayer& kept = cache.kept_layer(layer.layer);
      layer.tokens = kept.rows.tokens();
      layer.budget = kept.budget;
      layer.is_laid_out = kept.is_laid_out;
    }
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
  return total + groups_.bytes() + coded_.bytes();
}

// Of every plain layer, 0 of others.
std::vector<std::int64_t> KeptForecast::layer_rows() const {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(plan_.num_layers()));
  for (const Layer& layer : layers_) {
    rows[static_cast<std::size_t>(layer.layer)] = layer.tokens.rows;
  }
  return rows;
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
    tokens.has_left = tokens.has_left || tokens.rows > layer.budget;
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
            .has_left = true,
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
                           .has_left = true,
                           .coded_rows = added.coded_rows,
                           .residual_slots = added.residual_slots},
                          dtype_, page_tokens_);
}

// Most bytes while a layer reads, beside `others`.
std::int64_t KeptForecast::read_layer(Layer& layer, std::int64_t count, std::int64_t num_tokens,
                                      std::int64_t others) {
  const KvDtype exact = is_integer(dtype_) ? KvDtype::kFloat16 : dtype_;
  layer.tokens.rows += count;
  const std::int64_t full = layer_bytes(layer, exact);
  layer.budget = layer_budget(policy_, num_tokens, layer.layer, plan_.num_layers());
  layer.is_laid_out = false;
  return others + full + reduce(layer);
}

std::int64_t KeptForecast::read(std::int64_t count, std::int64_t num_tokens) {
  const KvDtype exact = is_integer(dtype_) ? KvDtype::kFloat16 : dtype_;
  std::int64_t now = bytes(), most = now;
  auto next = layers_.begin();
  for (int layer = 0; layer < plan_.num_layers(); ++layer) {
    const int group = plan_.group_of(layer);
    if (group >= 0 && plan_.groups[static_cast<std::size_t>(group)].first_layer == layer) {
      now -= groups_.bytes_of(group);
      most = std::max(most, now + groups_.read(group, count, num_tokens));
      now += groups_.bytes_of(group);
    } else if (plan_.layers[static_cast<std::size_t>(layer)] == KvSource::kCoded) {
      now -= coded_.bytes_of(layer);
      most = std::max(most, now + coded_.read(layer, count, num_tokens));
      now += coded_.bytes_of(layer);
    } else if (group < 0) {
      const std::int64_t before = layer_bytes(*next, dtype_);
      most = std::max(most, read_layer(*next, count, num_tokens, now - before));
      const bool coded = policy_.is_running() && next->tokens.has_left;
      now += layer_bytes(*next, coded ? dtype_ : exact) - before;
      ++next;
    }
  }
  const std::int64_t others = now - groups_.bytes();
  most = std::max(most, others + groups_.compress(true, layer_rows()));
  now = others + groups_.bytes() - coded_.bytes();
  most = std::max(most, now + coded_.code());
  now += coded_.bytes();
  std::int64_t codes = 0;  // of one layer beside its exact rows
  for (const Layer& layer : layers_) {
    const bool coded = policy_.is_running() && layer.tokens.has_left;
    codes = std::max(codes, coded || !is_integer(dtype_) ? 0 : layer_bytes(layer, dtype_));
  }
  return std::max(most, now + codes);
}

std::int64_t KeptForecast::extend(std::int64_t count) {
  std::int64_t most = bytes();
  for (std::int64_t step = 0; step < count; ++step) {
    for (Layer& layer : layers_) {
      if (layer.budget == 0 && (policy_.budget.tokens > 0 || !policy_.has_scores())) {
        layer.budget = layer_budget(policy_, 0, layer.layer, plan_.num_layers());
      }
      ++layer.tokens.rows;
    }
    groups_.append_one();
    coded_.append_one();
    std::int64_t now = bytes();
    for (Layer& layer : layers_) {
      if (policy_.is_running() && layer.budget > 0) {
        const bool starts = is_integer(dtype_) && !layer.tokens.has_left;
        now += reduce(layer);
        // Rows are exact before the context becomes codes.
        now += starts && layer.tokens.has_left ? layer_bytes(layer, KvDtype::kFloat16) : 0;
      }
    }
    most = std::max(most, now);
    groups_.leave_one();
    const std::int64_t others = bytes() - groups_.bytes();
    most = std::max(most, others + groups_.compress(false, layer_rows()));
    coded_.leave_one();
    const std::int64_t uncoded = bytes() - coded_.bytes();
    most = std::max(most, uncoded + coded_.code());
  }
  return std::max(most, bytes());
}

}  // namespace kvc
