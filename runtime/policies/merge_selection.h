// Which candidate tokens of which latent groups are merged, so that a sequence meets its byte
// target.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kv_plan.h"

namespace kvc {

struct MergeCandidates {
  std::int64_t num_tokens = 0;  // of the sequence
  // Of them, those that a layer holds, [num_layers]; empty: all.
  std::vector<std::int64_t> layer_tokens{};
  std::optional<KvDtype> plain_dtype{};  // of plain layers, where it is another than the groups'
  // [num_groups] consecutive tokens of each group; where it holds all tokens, the same in all groups.
  std::vector<std::int64_t> num_candidates{};
  // What each group would hold if no candidate were merged: candidates counted as unmerged.
  std::vector<GroupTokens> tokens;  // [num_groups]
  // Higher merges first. Scores that are not numbers merge last. A group's are empty while they are not known.
  std::vector<std::vector<float>> scores;  // [num_groups][num_candidates]
};

// Of groups that hold `tokens`, when counts[g] of a group's pending ones are candidates, whose scores are not known yet.
MergeCandidates merge_candidates(std::vector<GroupTokens> tokens, std::vector<std::int64_t> counts,
                                 std::int64_t num_tokens);

// Greedy: entries (candidate, group), or with group granularity whole groups by their mean score,
// best first, until plan_bytes <= target_kept_ratio * original_bytes, both of the tokens that layers hold; ties go
// to the lower candidate, then to the lower group. Entries whose merging saves nothing are left out. Where scores of some
// groups are not known, entries of the others that are chosen whatever those will be.
// dtype: of what groups store. [num_groups][num_candidates]
std::vector<std::vector<bool>> select_merges(const KvPlan& plan, const MergeCandidates& candidates,
                                             KvDtype dtype, std::int64_t page_tokens);

// Does select_merges choose anything, whatever the scores? Not where the target is met without.
bool merges_any(const KvPlan& plan, const MergeCandidates& candidates, KvDtype dtype,
                std::int64_t page_tokens);

}  // namespace kvc
