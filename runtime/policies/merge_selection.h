// Selects the tokens of latent groups that merge, so a sequence meets its byte target.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kv_plan_bytes.h"

namespace kvc {

struct MergeCandidates {
  std::int64_t num_tokens = 0;  // of the sequence
  // Tokens that each layer stores, [num_layers]; empty: all.
  std::vector<std::int64_t> layer_tokens{};
  std::optional<KvDtype> plain_dtype{};  // of plain layers, if different from the groups'
  // [num_groups] consecutive tokens of each group; equal in all groups that store all tokens.
  std::vector<std::int64_t> num_candidates{};
  // Contents of each group if no candidate merged: candidates count as unmerged.
  std::vector<GroupTokens> tokens;  // [num_groups]
  // Higher scores merge first, NaN last. Empty for groups whose scores are not known yet.
  std::vector<std::vector<float>> scores;  // [num_groups][num_candidates]
};

// For groups that hold `tokens`, when counts[g] of a group's pending ones are candidates, whose scores are not known yet.
MergeCandidates merge_candidates(std::vector<GroupTokens> tokens, std::vector<std::int64_t> counts,
                                 std::int64_t num_tokens);

// Greedy: entries (candidate, group), or with group granularity whole groups by their mean score, best first, until
// plan_bytes <= target_kept_ratio * original_bytes, both over stored tokens; ties go to the lower candidate, then to
// the lower group. Entries whose merging saves nothing are skipped. If scores of some groups are unknown: the entries
// of the others that are chosen in any case. dtype: of the groups. [num_groups][num_candidates]
std::vector<std::vector<bool>> select_merges(const KvPlan& plan, const MergeCandidates& candidates,
                                             KvDtype dtype, std::int64_t page_tokens);

// True if select_merges chooses something, whatever the scores; false if the target is met without.
bool merges_any(const KvPlan& plan, const MergeCandidates& candidates, KvDtype dtype,
                std::int64_t page_tokens);

}  // namespace kvc
