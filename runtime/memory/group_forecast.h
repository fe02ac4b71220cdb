// What latent groups under a token policy will take, at most (runtime/memory/kept_forecast.h). How many tokens a
// group keeps is known; which of them are latents follows the text. Tokens are taken to leave latents first. Nothing
// leaves after a prompt under policies that choose once: their counts are then the cache's, unless the text decides
// which tokens merge.
#pragma once

#include <cstdint>
#include <vector>

#include "core/token_policy.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

class GroupForecast {
 public:
  GroupForecast(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                std::int64_t page_tokens);
  GroupForecast(const KvCache& cache, KvDtype dtype, std::int64_t page_tokens);

  std::int64_t bytes() const;
  std::int64_t bytes_of(int group) const;
  // A group reads a prompt, after which the sequence has num_tokens. Most bytes of this group on the way.
  std::int64_t read(int group, std::int64_t count, std::int64_t num_tokens);
  void append_one();  // to every group
  void leave_one();   // after it, where the budget is full
  // What is due becomes latents. Most bytes of all groups on the way. layer_tokens [num_layers]: what plain layers
  // hold.
  std::int64_t compress(bool prompt_ended, std::vector<std::int64_t> layer_tokens);

 private:
  struct Group {
    KeptGroupTokens kept;
    std::int64_t budget = 0;
    bool is_laid_out = false;
    bool is_compressed = true;  // since it last read a prompt

    std::int64_t rows() const {
      return kept.tokens.merged + kept.tokens.unmerged + kept.tokens.pending;
    }
  };
  std::int64_t bytes_of(int group, const KeptGroupTokens& kept) const;
  std::int64_t before_codes() const;
  void leave(Group& group, bool is_step) const;
  std::vector<std::int64_t> due(bool prompt_ended) const;
  std::vector<GroupTokens> merged(const std::vector<std::int64_t>& counts,
                                  std::vector<GroupTokens> tokens,
                                  std::vector<std::int64_t> layer_tokens) const;

  const KvPlan* plan_;
  const TokenPolicy* policy_;
  KvDtype dtype_;
  std::int64_t page_tokens_;
  std::vector<Group> groups_;
};

}  // namespace kvc
