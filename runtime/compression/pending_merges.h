// Chooses the tokens of weight-based latent groups that merge: those that represent their groups best, over all groups
// of a sequence (runtime/policies/merge_selection.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "model/decoder.h"
#include "runtime/compression/group_view.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/policies/merge_selection.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Inputs of compression: a model, its plan and factors, and a pool's pages.
struct CompressionContext {
  const Decoder& decoder;
  const KvFactors& factors;
  KvDtype dtype;
  std::int64_t page_tokens;
};

// Considers the counts[g] oldest pending tokens of every group, sinks excluded. Groups may receive them one after the
// other: each is ranked when it has them, and decided after all were ranked.
class PendingMerges {
 public:
  // `tokens` and `num_tokens`: contents of each group and length of the sequence when all tokens
  // are present.
  PendingMerges(const CompressionContext& context, std::vector<GroupTokens> tokens,
                std::vector<std::int64_t> counts, std::int64_t num_tokens, KvCache& cache);

  // True if any token merges; otherwise groups can be decided one by one.
  bool any() const { return any_; }
  void rank(int group);
  // The same, and at once merges tokens of all groups so far that merge whatever the scores of later groups. Exact
  // until the end are then about those that never merge, and one group's tokens.
  void rank_ahead(int group);
  void decide(int group);

 private:
  struct Group {
    at::Tensor positions;            // [candidates]
    at::Tensor latents;              // [candidates, rank] float32; undefined: made anew
    std::vector<std::int64_t> left;  // candidates still pending, ascending
    std::int64_t first_merged = 0;   // merged rows before these
  };
  Group& at_group(int group) { return groups_[static_cast<std::size_t>(group)]; }
  std::int64_t count_of(int group) const {
    return candidates_.num_candidates[static_cast<std::size_t>(group)];
  }
  GroupView view_of(int group) const;
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
