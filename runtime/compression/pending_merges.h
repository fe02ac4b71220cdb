// Which tokens of latent groups of weights merge: those that represent their groups best, over all groups of a sequence
// (runtime/policies/merge_selection.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "model/decoder.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/policies/merge_selection.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// What a model and its plan compress with, in a pool's pages.
struct CompressionContext {
  const Decoder& decoder;
  const KvFactors& factors;
  KvDtype dtype;
  std::int64_t page_tokens;
};

// Of the counts[g] oldest pending tokens of every group that are no sinks. Groups may come to hold them one after the
// other: each is ranked once it does, and decided after all were.
class PendingMerges {
 public:
  // What each group holds, and how many tokens the sequence has, once all of them are there.
  PendingMerges(const CompressionContext& context, std::vector<GroupTokens> tokens,
                std::vector<std::int64_t> counts, std::int64_t num_tokens, KvCache& cache);

  // Does any token merge? Otherwise a group is decided whatever others hold.
  bool any() const { return any_; }
  void rank(int group);
  // Likewise, and what merges whatever the scores of later groups will be, in all groups so far, does at once. What
  // stays exact until the end is then about what does not merge, and one group's tokens.
  void rank_ahead(int group);
  void decide(int group);

 private:
  struct Group {
    at::Tensor positions;            // [candidates]
    at::Tensor latents;              // [candidates, rank] float32; undefined: made anew
    std::vector<std::int64_t> left;  // candidates that are still pending, ascending
    std::int64_t first_merged = 0;   // merged rows before these
  };
  Group& at_group(int group) { return groups_[static_cast<std::size_t>(group)]; }
  std::int64_t count_of(int group) const {
    return candidates_.num_candidates[static_cast<std::size_t>(group)];
  }
  std::vector<std::int64_t> begin(int group);
  void set_scores(int group, const at::Tensor& scores);
  void merge_ahead(int group, const std::vector<bool>& merges);
  at::Tensor positions_of(int group, const std::vector<std::int64_t>& places);
  at::Tensor latents_of(int group, const std::vector<std::int64_t>& places);

  CompressionContext context_;
  KvCache& cache_;
  MergeCandidates candidates_;
  bool any_ = false;
  std::vector<Group> groups_;
  std::vector<std::vector<bool>> merges_;  // of all groups, once they were ranked
};

}  // namespace kvc
