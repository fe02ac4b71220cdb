#include "runtime/policies/merge_selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/arithmetic.h"

namespace kvc {
namespace {

struct Entry {
  float score = 0;
  std::int64_t candidate = 0;  // first candidate
  std::int64_t count = 0;      // candidates: 1, or all of the group
  int group = 0;
};

float ranked(double score) {
  return std::isnan(score) ? -std::numeric_limits<float>::infinity() : static_cast<float>(score);
}

std::vector<Entry> entries_of_group(const KvPlan& plan, const MergeCandidates& candidates,
                                    int group) {
  const std::vector<float>& scores = candidates.scores[static_cast<std::size_t>(group)];
  if (scores.empty()) {
    return {};
  }
  if (plan.compression.granularity == Granularity::kGroup) {
    const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
    return {{.score = ranked(sum / static_cast<double>(scores.size())),
             .count = candidates.num_candidates[static_cast<std::size_t>(group)],
             .group = group}};
  }
  std::vector<Entry> entries;
  for (std::size_t candidate = 0; candidate < scores.size(); ++candidate) {
    entries.push_back({.score = ranked(scores[candidate]),
                       .candidate = static_cast<std::int64_t>(candidate),
                       .count = 1,
                       .group = group});
  }
  return entries;
}

// Whole blocks cost the same number of bytes per token whatever their count.
bool saves_bytes(const KvPlan& plan, int group, KvDtype dtype) {
  return group_bytes(plan, group, {.merged = kQuantisedTokens}, dtype) <
         group_bytes(plan, group, {.unmerged = kQuantisedTokens}, dtype);
}

// Bytes that merging saves at most in groups whose scores are not known: what is saved without pages and blocks, and
// those that one form begins or the other one ends.
std::int64_t unknown_savings(const KvPlan& plan, const MergeCandidates& candidates, KvDtype dtype,
                             std::int64_t page_tokens) {
  std::int64_t bytes = 0;
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    const auto index = static_cast<std::size_t>(group);
    const std::int64_t count = candidates.num_candidates[index];
    if (count == 0 || !candidates.scores[index].empty() ||
        plan.groups[index].replaces_projections() || !saves_bytes(plan, group, dtype)) {
      continue;
    }
    const std::int64_t blocks = round_up(count, kQuantisedTokens);
    const std::int64_t begun = 2 * std::max(page_tokens, kQuantisedTokens);
    bytes +=
        group_bytes(plan, group, {.unmerged = blocks}, dtype) -
        group_bytes(plan, group, {.merged = blocks}, dtype) +
        group_bytes(plan, group, {.merged = begun, .unmerged = begun, .pending = begun}, dtype);
  }
  return bytes;
}

std::vector<Entry> ranked_entries(const KvPlan& plan, const MergeCandidates& candidates,
                                  KvDtype dtype) {
  std::vector<Entry> entries;
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    if (!plan.groups[static_cast<std::size_t>(group)].replaces_projections() &&
        saves_bytes(plan, group, dtype)) {
      const auto added = entries_of_group(plan, candidates, group);
      entries.insert(entries.end(), added.begin(), added.end());
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(-a.score, a.candidate, a.group) < std::tuple(-b.score, b.candidate, b.group);
  });
  return entries;
}

// Keys, values and latents of all layers, and what they would take as they are.
struct CacheBytes {
  std::int64_t bytes = 0, original = 0;
};
CacheBytes totals_of(const KvPlan& plan, const MergeCandidates& candidates, KvDtype dtype,
                     std::int64_t page_tokens) {
  if (candidates.layer_tokens.empty()) {
    const auto plain = [&](KvDtype of) {
      return plan.num_layers_from(KvSource::kPlain) *
             plain_layer_bytes(plan, candidates.num_tokens, of, page_tokens);
    };
    return {plan_bytes(plan, candidates.num_tokens, candidates.tokens, dtype, page_tokens) -
                plain(dtype) + plain(candidates.plain_dtype.value_or(dtype)),
            original_bytes(plan, candidates.num_tokens, dtype)};
  }
  CacheBytes totals;
  std::int64_t tokens = 0;
  for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) {
    tokens += candidates.layer_tokens[layer];
    totals.bytes +=
        plan.layers[layer] == KvSource::kPlain
            ? plain_layer_bytes(plan, candidates.layer_tokens[layer], dtype, page_tokens)
            : 0;
  }
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    totals.bytes +=
        group_bytes(plan, static_cast<int>(group), candidates.tokens[group], dtype, page_tokens);
  }
  totals.original = original_bytes(plan, tokens, dtype) / plan.num_layers();
  return totals;
}

}  // namespace

MergeCandidates merge_candidates(std::vector<GroupTokens> tokens, std::vector<std::int64_t> counts,
                                 std::int64_t num_tokens) {
  for (std::size_t group = 0; group < counts.size(); ++group) {
    tokens[group].pending -= counts[group];
    tokens[group].unmerged += counts[group];
  }
  const std::size_t num_groups = counts.size();
  return {.num_tokens = num_tokens,
          .num_candidates = std::move(counts),
          .tokens = std::move(tokens),
          .scores = std::vector<std::vector<float>>(num_groups)};
}

bool merges_any(const KvPlan& plan, const MergeCandidates& candidates, KvDtype dtype,
                std::int64_t page_tokens) {
  if (plan.compression.rule == MergeRule::kNone) {
    return false;
  }
  const CacheBytes totals = totals_of(plan, candidates, dtype, page_tokens);
  return static_cast<double>(totals.bytes) >
         plan.compression.target_kept_ratio * static_cast<double>(totals.original);
}

std::vector<std::vector<bool>> select_merges(const KvPlan& plan, const MergeCandidates& candidates,
                                             KvDtype dtype, std::int64_t page_tokens) {
  std::vector<std::vector<bool>> merges;
  for (const std::int64_t count : candidates.num_candidates) {
    merges.emplace_back(static_cast<std::size_t>(count));
  }
  if (plan.compression.rule == MergeRule::kNone) {
    return merges;
  }
  std::vector<GroupTokens> tokens = candidates.tokens;
  const CacheBytes totals = totals_of(plan, candidates, dtype, page_tokens);
  std::int64_t bytes = totals.bytes - unknown_savings(plan, candidates, dtype, page_tokens);
  const double target = plan.compression.target_kept_ratio * static_cast<double>(totals.original);
  for (const Entry& entry : ranked_entries(plan, candidates, dtype)) {
    if (static_cast<double>(bytes) <= target) {
      break;
    }
    const auto group = static_cast<std::size_t>(entry.group);
    bytes -= group_bytes(plan, entry.group, tokens[group], dtype, page_tokens);
    tokens[group].unmerged -= entry.count;
    tokens[group].merged += entry.count;
    bytes += group_bytes(plan, entry.group, tokens[group], dtype, page_tokens);
    for (std::int64_t i = 0; i < entry.count; ++i) {
      merges[group][static_cast<std::size_t>(entry.candidate + i)] = true;
    }
  }
  return merges;
}

}  // namespace kvc
