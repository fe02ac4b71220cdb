// What layers under a token policy will take (runtime/memory/memory_forecast.h): plain ones exactly, latent groups
// at most (runtime/memory/group_forecast.h), coded layers by runtime/memory/coded_forecast.h.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/token_policy.h"
#include "runtime/memory/coded_forecast.h"
#include "runtime/memory/group_forecast.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

class KeptForecast {
 public:
  // Of an empty cache, or of one that holds something.
  KeptForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
               std::int64_t page_tokens);
  KeptForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens);

  // A prompt, after which the sequence has num_tokens; or one token after the other. Most bytes on the way.
  std::int64_t read(std::int64_t count, std::int64_t num_tokens);
  std::int64_t extend(std::int64_t count);
  std::int64_t bytes() const;

 private:
  struct Layer {
    int layer = 0;
    KeptTokens tokens{};
    std::int64_t pruned_rows = 0;
    std::int64_t budget = 0;
    bool is_laid_out = false;
  };
  std::vector<std::int64_t> layer_rows() const;
  std::int64_t layer_bytes(const Layer& layer, KvDtype dtype) const;
  std::int64_t added_bytes(const KeptTokens& added) const;
  Layer& layer_at(int layer);
  void set_budget(const SharingLayers& sharing, std::int64_t num_tokens);
  std::pair<std::int64_t, std::int64_t> finish(const SharingLayers& sharing,
                                               std::int64_t num_tokens, std::int64_t now);
  // Bytes that come before what is dropped goes.
  std::int64_t reduce(Layer& layer) const;

  const KvPlan& plan_;
  const TokenPolicy& policy_;
  KvDtype dtype_;
  std::int64_t page_tokens_;
  std::vector<Layer> layers_;  // plain ones
  std::vector<SharingLayers> sharing_;
  GroupForecast groups_;
  CodedForecast coded_;
};

}  // namespace kvc
