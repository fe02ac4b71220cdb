// What a KV cache will take, before anything is read: the counts of tokens that the runtime goes through,
// under the plan's formula.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "runtime/memory/group_forecast.h"
#include "runtime/memory/layer_forecast.h"

namespace kvc {

// The counts of one sequence's cache. Bytes between passes are exact, but for what the text decides: of pairs and of latent
// groups.
class CacheForecast {
 public:
  // For an empty cache; of one where groups hold `tokens`; of one that is there, a bound.
  explicit CacheForecast(const ForecastSettings& settings) : CacheForecast(settings, nullptr) {}
  CacheForecast(const KvPlan& plan, KvDtype dtype, std::int64_t page_tokens,
                MergeSpread spread = MergeSpread::kEven, const TokenPolicy& policy = {})
      : CacheForecast(ForecastSettings{plan, dtype, page_tokens, spread, policy}, nullptr) {}
  CacheForecast(const ForecastSettings& settings, std::int64_t num_tokens,
                const std::vector<GroupTokens>& tokens);
  CacheForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens)
      : CacheForecast({cache.plan(), dtype, page_tokens, MergeSpread::kNone, cache.policy()},
                      &cache) {}

  // Each returns the most bytes on the way.
  std::int64_t read(std::int64_t count);    // a prompt's tokens, layer by layer
  std::int64_t extend(std::int64_t count);  // one after the other

  std::int64_t bytes() const;
  // That can be appended before a block leaves the window and is decided, or becomes codes; 0 or less: one is due.
  std::int64_t tokens_until_due() const;
  std::int64_t num_tokens() const { return num_tokens_; }
  std::vector<GroupTokens> tokens() const;  // of each group

 private:
  CacheForecast(const ForecastSettings& settings, const KvCache* cache);
  std::vector<GroupForecast>& groups() { return std::get<std::vector<GroupForecast>>(layers_); }
  std::vector<std::int64_t> layer_tokens() const;
  void compress_groups(bool prompt_ended, PassBytes& pass);

  ForecastSettings settings_;
  std::int64_t num_tokens_;
  // For each source.
  std::tuple<std::vector<PlainForecast>, std::vector<CodedForecast>, std::vector<PairForecast>,
             std::vector<GroupForecast>>
      layers_;
};

}  // namespace kvc
