#include "runtime/memory/layer_forecast.h"

#include <numeric>

#include "core/token_policy.h"

namespace kvc {

LayerForecast::LayerForecast(const ForecastSettings& settings, int first_layer, int num_layers)
    : settings_(settings), layers_(static_cast<std::size_t>(num_layers)) {
  std::iota(layers_.begin(), layers_.end(), first_layer);
}

void LayerForecast::read(int layer, std::int64_t count, std::int64_t prompt_end, PassBytes& pass) {
  follow(pass, [&] { store(layer, count); });
  if (layer == layers_.back()) {
    leave(prompt_end, pass);
    compress(count, pass);
  }
}

void LayerForecast::append(std::int64_t count, PassBytes& pass) {
  follow(pass, [&] { store(kAllLayers, count); });
}

void LayerForecast::leave(std::int64_t prompt_end, PassBytes& pass) {
  const bool is_step = prompt_end == 0;
  budget_.update(plan(), policy(), layers_, prompt_end);
  const std::int64_t leaving = budget_.leaving(policy(), rows(), is_step, slots_ > 0);
  if (leaving > 0) {
    follow(pass, [&] { slots_ = policy().residual_slots; });  // before anything goes
    follow(pass, [&] {
      remove(leaving, is_step);
      budget_.is_laid_out = true;
    });
  }
}

PlainForecast::PlainForecast(const ForecastSettings& settings, const SharingLayers& sharing,
                             const KvCache* cache)
    : LayerForecast(settings, sharing.layers),
      dtype_(settings.plain_dtype.value_or(settings.dtype)),
      has_codes_(is_integer(dtype_) &&
                 (!plan().own_widths || quantises_latents(plan().own_widths->key, dtype_))),
      storage_(sharing.storage) {
  for (const int layer : storage_) {
    KeptTokens& tokens = stored_.emplace_back();
    tokens.shares_heads = sharing.shares_heads;
    tokens.follows = layer != storage_.front();
    if (cache != nullptr && policy().is_full()) {
      tokens.rows = cache->num_tokens();
      tokens.codes = cache->plain_layer(layer).num_codes();
    } else if (cache != nullptr && policy().prunes_channels()) {
      tokens.rows = cache->pruned_layer(layer).store.num_rows();
      pruned_ = cache->pruned_layer(layer).store.num_pruned();
    } else if (cache != nullptr) {
      tokens = cache->kept_layer(layer).rows.tokens();
      slots_ = tokens.residual_slots;
      budget_ = cache->kept_layer(storage_.front()).choice;
    }
  }
}

std::int64_t PlainForecast::bytes_of(KeptTokens tokens) const {
  tokens.residual_slots = slots_;
  return policy().prunes_channels()
             ? pruned_layer_bytes(plan(), policy(), tokens.rows, pruned_, dtype_,
                                  settings_.page_tokens)
             : kept_layer_bytes(plan(), policy(), tokens, dtype_, settings_.page_tokens);
}

std::int64_t PlainForecast::bytes() const {
  std::int64_t total = 0;
  for (const KeptTokens& tokens : stored_) {
    total += bytes_of(tokens);
  }
  return total;
}

std::int64_t PlainForecast::tokens_until_due() const {
  return has_codes_ && !codes_by_row() ? tokens_until_codes(plan(), rows() - stored_.front().codes)
                                       : kNever;
}

void PlainForecast::store(int layer, std::int64_t count) {
  for (std::size_t i = 0; i < stored_.size(); ++i) {
    stored_[i].rows += layer == kAllLayers || layer == storage_[i] ? count : 0;
  }
}

// The newest token takes a place that is there, or the others are stored anew, exactly.
void PlainForecast::remove(std::int64_t count, bool is_step) {
  for (KeptTokens& tokens : stored_) {
    tokens.rows -= count;
    if (!is_step || !budget_.is_laid_out) {
      tokens.codes = 0;
      tokens.has_left = true;
      tokens.reserved_rows = policy().is_running() ? tokens.rows + 1 : 0;
    }
  }
}

// Rows that lose channels, or become codes, are there twice for a while.
void PlainForecast::compress(std::int64_t prompt_tokens, PassBytes& pass) {
  if (policy().prunes_channels() && prompt_tokens > 0) {
    const std::int64_t whole = rows() - pruned_, before = bytes();
    pruned_ = std::max(pruned_, pruned_rows_of(policy(), plan(), rows()));
    pass.change(bytes_of({.rows = pruned_ + whole}) - before, bytes() - before);
  }
  for (std::size_t i = 0; has_codes_ && i < stored_.size(); ++i) {
    KeptTokens& tokens = stored_[i];
    const std::int64_t before = bytes_of(tokens);
    const std::int64_t count =
        !codes_by_row()     ? tokens_in_blocks(plan(), tokens.rows - tokens.codes)
        : tokens.codes == 0 ? running_layout(policy(), budget_.budget).context
                            : 0;
    tokens.codes += count;
    KeptTokens both = tokens;
    both.rows += count;
    pass.change(bytes_of(both) - before, bytes_of(tokens) - before);
  }
}

CodedForecast::CodedForecast(const ForecastSettings& settings, const CodedLayers& layers,
                             const KvCache* cache)
    : LayerForecast(settings, layers.first_layer, layers.num_layers) {
  if (cache != nullptr) {
    tokens_ = cache->coded(layers.first_layer).tokens();
    budget_ = cache->kept_coded(layers.first_layer);
  }
}

std::int64_t CodedForecast::bytes_of(const KeptCodedTokens& tokens) const {
  return kept_coded_bytes(plan(), policy(), layers_.front(), tokens, settings_.dtype,
                          settings_.page_tokens);
}

std::int64_t CodedForecast::tokens_until_due() const {
  return tokens_until_codes(plan(), tokens_.rows - tokens_.codes);
}

void CodedForecast::read(int layer, std::int64_t count, std::int64_t prompt_end, PassBytes& pass) {
  while (count > 0) {
    const std::int64_t step =
        codes_prompts(plan()) ? coded_prompt_step(tokens_.rows, count) : count;
    LayerForecast::read(layer, step, prompt_end, pass);
    count -= step;
  }
}

// How many codes stay when a prompt ends follows the text: none are taken to until new ones are made.
void CodedForecast::remove(std::int64_t count, bool is_step) {
  tokens_ = {tokens_.rows - count, is_step ? tokens_.codes : 0};
}

// Codes come before the exact rows that they are made of go.
void CodedForecast::compress(std::int64_t /*prompt_tokens*/, PassBytes& pass) {
  const std::int64_t before = bytes();
  const std::int64_t made = tokens_in_blocks(plan(), tokens_.rows - tokens_.codes);
  tokens_.codes += made;
  pass.change(bytes_of({tokens_.rows + made, tokens_.codes}) - before, bytes() - before);
}

PairForecast::PairForecast(const ForecastSettings& settings, int first_layer, const KvCache* cache)
    : LayerForecast(settings, first_layer, 2) {
  if (cache != nullptr) {
    tokens_ = cache->pair(first_layer).tokens();
  }
}

std::int64_t PairForecast::bytes() const {
  return pair_bytes(plan(), tokens_, settings_.dtype, settings_.page_tokens);
}

// A prompt's tokens are merged; what they become is stored before they go.
void PairForecast::compress(std::int64_t prompt_tokens, PassBytes& pass) {
  const std::int64_t before = bytes(), retained = plan().paired->most_retained(prompt_tokens);
  tokens_.merged += prompt_tokens;
  tokens_.retained_keys += retained;
  tokens_.retained_values += retained;
  const std::int64_t both = bytes();
  tokens_.exact -= prompt_tokens;
  pass.change(both - before, bytes() - before);
}

}  // namespace kvc
