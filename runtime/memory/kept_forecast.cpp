#include "runtime/memory/kept_forecast.h"

#include <algorithm>

#include "core/token_policy.h"

namespace kvc {

KeptForecast::KeptForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                           std::int64_t page_tokens)
    : plan_(plan),
      policy_(policy),
      dtype_(dtype),
      page_tokens_(page_tokens),
      sharing_(sharing_layers(plan)),
      groups_(plan, policy, dtype, page_tokens),
      coded_(plan, policy, dtype, page_tokens) {
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    if (plan.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain) {
      layers_.push_back({.layer = layer});
    }
  }
  for (const SharingLayers& sharing : sharing_) {
    for (const int layer : sharing.storage) {
      KeptTokens& tokens = layer_at(layer).tokens;
      tokens.shares_heads = sharing.shares_heads;
      tokens.follows = layer != sharing.storage.front();
    }
  }
}

KeptForecast::Layer& KeptForecast::layer_at(int layer) {
  return *std::find_if(layers_.begin(), layers_.end(),
                       [layer](const Layer& of) { return of.layer == layer; });
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
      const KeptGroup& choice = cache.kept_layer(cache.sharing(layer.layer).storage.front()).choice;
      layer.tokens = cache.kept_layer(layer.layer).rows.tokens();
      layer.budget = choice.budget;
      layer.is_laid_out = choice.is_laid_out;
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
            .residual_slots = policy_.residual_slots,
            .shares_heads = tokens.shares_heads,
            .follows = tokens.follows};
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

void KeptForecast::set_budget(const SharingLayers& sharing, std::int64_t num_tokens) {
  const std::int64_t budget = shared_budget(plan_, policy_, num_tokens, sharing.layers);
  for (const int layer : sharing.storage) {
    layer_at(layer).budget = budget;
  }
}

// Of layers that have read all of a prompt: the most bytes, and those in the end.
std::pair<std::int64_t, std::int64_t> KeptForecast::finish(const SharingLayers& sharing,
                                                           std::int64_t num_tokens,
                                                           std::int64_t now) {
  const KvDtype exact = is_integer(dtype_) ? KvDtype::kFloat16 : dtype_;
  set_budget(sharing, num_tokens);
  std::int64_t most = now;
  for (const int storage : sharing.storage) {
    Layer& layer = layer_at(storage);
    layer.is_laid_out = false;
    now -= layer_bytes(layer, exact);
    most += reduce(layer);
    const bool coded = policy_.is_running() && layer.tokens.has_left;
    now += layer_bytes(layer, coded ? dtype_ : exact);
  }
  for (const int storage : sharing.storage) {  // codes come beside exact rows
    const Layer& layer = layer_at(storage);
    if (is_integer(dtype_) && !(policy_.is_running() && layer.tokens.has_left)) {
      most = std::max(most, now + layer_bytes(layer, dtype_));
      now += layer_bytes(layer, dtype_) - layer_bytes(layer, exact);
    }
  }
  return {most, now};
}

std::int64_t KeptForecast::read(std::int64_t count, std::int64_t num_tokens) {
  const KvDtype exact = is_integer(dtype_) ? KvDtype::kFloat16 : dtype_;
  std::int64_t now = bytes(), most = now;
  for (int layer = 0; layer < plan_.num_layers(); ++layer) {
    const int group = plan_.group_of(layer);
    if (group >= 0 && plan_.groups[static_cast<std::size_t>(group)].first_layer == layer) {
      now -= groups_.bytes_of(group);
      most = std::max(most, now + groups_.read(group, count, num_tokens));
      now += groups_.bytes_of(group);
    } else if (plan_.layers[static_cast<std::size_t>(layer)] == KvSource::kCoded) {
      now -= coded_.bytes_of(layer);
      most = std::max(most, now + coded_.read(layer, count, num_tokens));
      now += coded_.bytes_of(layer) - coded_.bytes();
      most = std::max(most, now + coded_.code());
      now += coded_.bytes();
    } else if (plan_.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain) {
      Layer& own = layer_at(layer);
      now -= layer_bytes(own, dtype_);
      own.tokens.rows += count;
      now += layer_bytes(own, exact);
    }
    for (const SharingLayers& sharing : sharing_) {
      if (sharing.layers.back() == layer) {
        const auto [then, reduced] = finish(sharing, num_tokens, now);
        most = std::max(most, then);
        now = reduced;
      }
    }
  }
  const std::int64_t others = now - groups_.bytes();
  return std::max(most, others + groups_.compress(true, layer_rows()));
}

std::int64_t KeptForecast::extend(std::int64_t count) {
  std::int64_t most = bytes();
  for (std::int64_t step = 0; step < count; ++step) {
    for (const SharingLayers& sharing : sharing_) {
      if (layer_at(sharing.storage.front()).budget == 0 &&
          (policy_.budget.tokens > 0 || !policy_.has_scores())) {
        set_budget(sharing, 0);
      }
    }
    for (Layer& layer : layers_) {
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
