// What a KV cache will take, before anything is read: the counts of tokens that the runtime goes through,
// under the plan's formula.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "runtime/memory/kept_forecast.h"

namespace kvc {

// Which tokens merge depends on the text: while a group is compressed, its merged tokens are taken to be
// its share of all, or (for a bound) none. How many tokens pairs of layers retain does too: as many as may be.
enum class MergeSpread { kEven, kNone };

// The counts of one sequence's cache.
class CacheForecast {
 public:
  CacheForecast(const KvPlan& plan, KvDtype dtype, std::int64_t page_tokens);
  // Of a cache that holds these.
  CacheForecast(const KvPlan& plan, std::int64_t num_tokens, std::vector<GroupTokens> groups,
                KvDtype dtype, std::int64_t page_tokens, MergeSpread spread);

  // Of plain layers, where it is another than what groups store.
  void set_plain_dtype(KvDtype dtype);
  // Of pairs of layers, in the plan's order; else they hold nothing yet.
  void set_pairs(std::vector<PairTokens> pairs) { pairs_ = std::move(pairs); }
  // Plain layers are under a token policy that is not full.
  void set_kept(KeptForecast kept) { kept_.emplace(std::move(kept)); }

  // Each returns the most bytes on the way.
  std::int64_t read(std::int64_t count);    // a prompt's tokens, layer by layer
  std::int64_t extend(std::int64_t count);  // one after the other

  std::int64_t bytes() const;
  std::int64_t expansion_bytes()
      const;  // of everything that can be rebuilt (runtime/compression/expansion.h)
  std::int64_t num_tokens() const { return num_tokens_; }
  const std::vector<GroupTokens>& tokens() const { return groups_; }

 private:
  friend class PromptForecast;
  void append(std::int64_t count);
  std::int64_t undecided() const;
  std::int64_t plain_bytes(std::int64_t codes, std::int64_t num_tokens) const;  // of one layer
  std::int64_t coded_bytes() const;
  std::int64_t compress(std::int64_t count);
  std::int64_t quantise();
  std::int64_t code();

  const KvPlan& plan_;
  KvDtype dtype_, plain_dtype_;
  MergeSpread spread_;
  std::int64_t page_tokens_, num_tokens_ = 0, codes_ = 0;  // codes_: tokens of plain layers
  std::int64_t coded_ = 0;                                 // tokens of coded layers that are codes
  std::vector<GroupTokens> groups_;
  std::vector<PairTokens> pairs_;
  std::optional<KeptForecast> kept_;
};

}  // namespace kvc
