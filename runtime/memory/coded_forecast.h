// What coded layers under a token policy will take (runtime/memory/kept_forecast.h). Between passes it is exact; how
// many of the codes stay when a later prompt ends follows the text, and none are taken to until new ones are made.
#pragma once

#include <cstdint>
#include <vector>

#include "core/token_policy.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

class CodedForecast {
 public:
  CodedForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                std::int64_t page_tokens);
  CodedForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens);

  std::int64_t bytes() const;
  // Layers that are stored together, the first of which is `first_layer`; 0 of other layers.
  std::int64_t bytes_of(int first_layer) const;
  // They read a prompt, after which the sequence has num_tokens. Most bytes of these layers on the way.
  std::int64_t read(int first_layer, std::int64_t count, std::int64_t num_tokens);
  void append_one();    // to every store
  void leave_one();     // after it, where the budget is full
  std::int64_t code();  // what left the window becomes codes. Most bytes of all stores on the way

 private:
  struct Unit {
    CodedLayers layers;
    KeptCodedTokens tokens{};
    std::int64_t budget = 0;
  };
  std::int64_t bytes_of(const Unit& unit, const KeptCodedTokens& tokens) const;
  std::int64_t budget_of(const Unit& unit, std::int64_t num_tokens) const;
  void leave(Unit& unit, bool is_step) const;

  const KvPlan* plan_;
  const TokenPolicy* policy_;
  KvDtype dtype_;
  std::int64_t page_tokens_;
  std::vector<Unit> units_;
};

}  // namespace kvc
