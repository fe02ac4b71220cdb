// What paired layers under a token policy will take at most (runtime/memory/kept_forecast.h): which of the kept tokens are
// merged, and which are retained besides, follows the text.
#pragma once

#include <cstdint>
#include <vector>

#include "core/token_policy.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

class PairForecast {
 public:
  PairForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
               std::int64_t page_tokens);
  PairForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens);

  std::int64_t bytes() const;
  // Of the pair whose first layer is `first_layer`; 0 of other layers.
  std::int64_t bytes_of(int first_layer) const;
  // It reads a prompt, after which the sequence has num_tokens. Most bytes of the pair on the way.
  std::int64_t read(int first_layer, std::int64_t count, std::int64_t num_tokens);
  // What is left of the prompt's `count` tokens is merged. Most bytes of the pair on the way.
  std::int64_t merge(int first_layer, std::int64_t count);
  void append_one();  // to every pair
  void leave_one();   // after it, where the budget is full

 private:
  struct Unit {
    int first_layer = 0;
    PairTokens tokens{};
    std::int64_t budget = 0;
    std::int64_t generated = 0;  // tokens that no prompt had: they stay exact
  };
  std::int64_t bytes_of(const PairTokens& tokens) const;
  void leave(Unit& unit, bool is_step) const;
  void set_budget(Unit& unit, std::int64_t num_tokens) const;

  const KvPlan* plan_;
  const TokenPolicy* policy_;
  KvDtype dtype_;
  std::int64_t page_tokens_;
  std::vector<Unit> units_;
};

}  // namespace kvc
