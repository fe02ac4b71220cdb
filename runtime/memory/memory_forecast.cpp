#include "runtime/memory/memory_forecast.h"

#include <algorithm>

#include "runtime/compression/prompt_compression.h"

namespace kvc {
namespace {

// Plain layers by those that keep the same tokens; where no policy drops any, each with its last reader.
std::vector<SharingLayers> plain_layers(const KvPlan& plan, const TokenPolicy& policy) {
  if (!policy.is_full()) {
    return sharing_layers(plan);
  }
  std::vector<SharingLayers> all;
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    if (plan.layers[static_cast<std::size_t>(layer)] == KvSource::kPlain) {
      all.push_back({.layers = {layer, last_reader(plan, layer)}, .storage = {layer}});
    }
  }
  return all;
}

template <typename Layers, typename Function>
void for_each(Layers& layers, const Function& function) {
  std::apply([&](auto&... all) { (std::for_each(all.begin(), all.end(), function), ...); }, layers);
}

}  // namespace

CacheForecast::CacheForecast(const ForecastSettings& settings, const KvCache* cache)
    : settings_(settings), num_tokens_(cache == nullptr ? 0 : cache->num_tokens()) {
  auto& [plain, coded, pairs, groups] = layers_;
  for (const SharingLayers& layers : plain_layers(settings.plan, settings.policy)) {
    plain.emplace_back(settings, layers, cache);
  }
  for (const CodedLayers& layers : coded_layers(settings.plan)) {
    coded.emplace_back(settings, layers, cache);
  }
  for (int group = 0; group < static_cast<int>(settings.plan.groups.size()); ++group) {
    groups.emplace_back(settings, group, cache);
  }
  if (settings.plan.paired) {
    for (const int layer : settings.plan.paired->first_layers) {
      pairs.emplace_back(settings, layer, cache);
    }
  }
}

CacheForecast::CacheForecast(const ForecastSettings& settings, std::int64_t num_tokens,
                             const std::vector<GroupTokens>& tokens)
    : CacheForecast(settings) {
  PassBytes pass{0};
  num_tokens_ = num_tokens;
  for (std::size_t group = 0; group < tokens.size(); ++group) {
    groups()[group].set_tokens(tokens[group], pass);
  }
}

std::int64_t CacheForecast::bytes() const {
  std::int64_t total = 0;
  for_each(layers_, [&](const LayerForecast& layers) { total += layers.bytes(); });
  return total;
}

std::vector<GroupTokens> CacheForecast::tokens() const {
  std::vector<GroupTokens> tokens;
  for (const GroupForecast& group : std::get<std::vector<GroupForecast>>(layers_)) {
    tokens.push_back(group.tokens());
  }
  return tokens;
}

// What each layer holds, where that is not all tokens of the sequence.
std::vector<std::int64_t> CacheForecast::layer_tokens() const {
  std::vector<std::int64_t> tokens;
  if (!settings_.policy.is_full()) {
    tokens.resize(settings_.plan.layers.size());
    for_each(layers_, [&](const LayerForecast& layers) {
      for (const int layer : layers.layers()) {
        tokens[static_cast<std::size_t>(layer)] = layers.rows();
      }
    });
  }
  return tokens;
}

std::int64_t CacheForecast::tokens_until_due() const {
  std::int64_t fewest = settings_.policy.is_running() ? 1 : kNever;
  for_each(layers_, [&](const LayerForecast& layers) {
    fewest = std::min(fewest, layers.tokens_until_due());
  });
  return fewest;
}

void CacheForecast::compress_groups(bool prompt_ended, PassBytes& pass) {
  if (!groups().empty()) {
    MergeForecast(settings_, groups(), tokens(), prompt_ended, num_tokens_, layer_tokens())
        .compress(pass);
  }
}

std::int64_t CacheForecast::read(std::int64_t count) {
  const KvPlan& plan = settings_.plan;
  if (codes_prompts(plan) &&
      !reads_codes_by_layer(plan, settings_.plain_dtype.value_or(settings_.dtype))) {
    return extend(count);
  }
  PassBytes pass{bytes()};
  num_tokens_ += count;
  const bool is_full = settings_.policy.is_full();
  MergeForecast merges(settings_, groups(), tokens_with_prompt(plan, tokens(), count), true,
                       num_tokens_, {});
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    for_each(layers_, [&](LayerForecast& layers) { layers.read(layer, count, num_tokens_, pass); });
    const int group = plan.group_of(layer);
    if (is_full && group >= 0 &&
        groups()[static_cast<std::size_t>(group)].layers().back() == layer) {
      merges.compress_group(static_cast<std::size_t>(group), pass);
    }
  }
  if (!is_full) {
    compress_groups(true, pass);
  }
  return pass.most;
}

std::int64_t CacheForecast::extend(std::int64_t count) {
  PassBytes pass{bytes()};
  while (count > 0) {
    const std::int64_t step = std::min(count, std::max<std::int64_t>(1, tokens_until_due()));
    count -= step;
    num_tokens_ += step;
    for_each(layers_, [&](LayerForecast& layers) {
      layers.append(step, pass);
      layers.leave(0, pass);
    });
    compress_groups(false, pass);
    for_each(layers_, [&](LayerForecast& layers) { layers.compress(0, pass); });
  }
  return pass.most;
}

}  // namespace kvc
