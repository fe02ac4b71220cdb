// Policies of a fixed budget, which a cache stays within however long the text grows: ZeroMerge, H2O
// (arXiv 2306.14048: no residual, lambda = 1) and StreamingLLM (2309.17453: sinks and ring alone).
//
// Rows lie as RunningLayout says, once the budget is full: sinks by position; the context; the ring, where the
// token at position p is in place p mod ring; then the token that was read last.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

// One head's rows by what becomes of them.
struct HeadRows {
  std::vector<std::int64_t> kept;    // [layout.rows()] in the layout's order
  std::vector<std::int64_t> merged;  // by position
};

HeadRows sort_rows(const RunningLayout& layout, const KeptRows& all, std::int64_t head) {
  const std::int64_t num_rows = all.num_rows();
  const at::Tensor own_positions = all.positions();
  const auto positions = own_positions.accessor<std::int64_t, 2>();
  std::vector<std::int64_t> by_position(static_cast<std::size_t>(num_rows));
  std::iota(by_position.begin(), by_position.end(), 0);
  std::sort(by_position.begin(), by_position.end(), [&](std::int64_t a, std::int64_t b) {
    return positions[a][head] < positions[b][head];
  });
  HeadRows rows;
  const auto sinks_end = by_position.begin() + layout.sinks;
  const auto ring_begin = by_position.end() - layout.ring;
  rows.kept.assign(by_position.begin(), sinks_end);
  std::vector<std::int64_t> candidates(sinks_end, ring_begin);
  if (layout.context > 0) {
    const at::Tensor own_scores = all.scores();
    const auto scores = own_scores.accessor<float, 2>();
    std::sort(candidates.begin(), candidates.end(), [&](std::int64_t a, std::int64_t b) {
      return std::tuple(-scores[a][head], -positions[a][head]) <
             std::tuple(-scores[b][head], -positions[b][head]);
    });
  }
  const auto context_end = candidates.begin() + layout.context;
  const auto position_less = [&](std::int64_t a, std::int64_t b) {
    return positions[a][head] < positions[b][head];
  };
  std::sort(candidates.begin(), context_end, position_less);
  std::sort(context_end, candidates.end(), position_less);
  rows.kept.insert(rows.kept.end(), candidates.begin(), context_end);
  rows.merged.assign(context_end, candidates.end());
  rows.kept.resize(static_cast<std::size_t>(layout.rows()));
  for (auto row = ring_begin; row != by_position.end(); ++row) {
    rows.kept[static_cast<std::size_t>(layout.sinks + layout.context +
                                       positions[*row][head] % layout.ring)] = *row;
  }
  return rows;
}

// KV heads that keep the same tokens.
struct HeadRange {
  std::int64_t first = 0, last = 0;
};
std::vector<HeadRange> head_ranges(const KeptRows& rows) {
  if (!rows.per_head()) {
    return {{0, rows.num_kv_heads()}};
  }
  std::vector<HeadRange> ranges;
  for (std::int64_t head = 0; head < rows.num_kv_heads(); ++head) {
    ranges.push_back({head, head + 1});
  }
  return ranges;
}

// all: of every member
void merge_rows(const TokenPolicy& policy, const KeptMembers& layers,
                const std::vector<KeptContent>& all, const HeadRange& heads,
                const std::vector<std::int64_t>& merged) {
  const auto count = static_cast<std::int64_t>(merged.size());
  const std::int64_t per_slot = (count + policy.residual_slots - 1) / policy.residual_slots;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = merged[static_cast<std::size_t>(i)];
    std::vector<LeavingToken> token;
    for (std::size_t member = 0; member < all.size(); ++member) {
      for (std::int64_t head = heads.first; head < heads.last; ++head) {
        token.push_back({.slots = &layers.members[member].rows->residual(),
                         .kv_head = head,
                         .key = all[member].key[row][head].const_data_ptr<float>(),
                         .value = all[member].value[row][head].const_data_ptr<float>()});
      }
    }
    if (!policy.contiguous_merge) {
      merge_token(token);
      continue;
    }
    for (const LeavingToken& part : token) {
      part.slots->add(i / per_slot, part.kv_head, part.key, part.value, 1);
    }
  }
}

// From rows in any order to the layout.
void reduce(const TokenPolicy& policy, const KeptMembers& layers) {
  const RunningLayout layout = running_layout(policy, layers.choice.budget);
  std::vector<KeptContent> all;
  for (const KeptMember& member : layers.members) {
    if (policy.residual_slots > 0) {
      all.push_back(member.rows->content(member.turn));
    }
  }
  std::vector<at::Tensor> kept;
  for (const HeadRange& heads : head_ranges(layers.first())) {
    const HeadRows of_heads = sort_rows(layout, layers.first(), heads.first);
    if (policy.residual_slots > 0) {
      merge_rows(policy, layers, all, heads, of_heads.merged);
    }
    kept.push_back(at::tensor(of_heads.kept, at::kLong));
  }
  for (const KeptMember& member : layers.members) {
    KeptRows& rows = *member.rows;
    rows.keep(rows.per_head() ? at::stack(kept, 1) : kept.front(), member.turn);
    rows.code(layout.sinks, layout.context);
    rows.reserve(layout.rows() + 1);
  }
  layers.choice.is_laid_out = true;
}

// Rows `row` of these heads as numbers, which become part of a slot.
void merge_row(const KeptMembers& layers, const HeadRange& heads, std::int64_t row) {
  const std::int64_t head_dim = layers.first().head_dim();
  const std::int64_t count =
      static_cast<std::int64_t>(layers.members.size()) * (heads.last - heads.first);
  std::vector<float> memory(static_cast<std::size_t>(2 * head_dim * count));
  float* numbers = memory.data();
  std::vector<LeavingToken> token;
  for (const KeptMember& member : layers.members) {
    for (std::int64_t head = heads.first; head < heads.last; ++head) {
      member.rows->read(row, head, numbers, numbers + head_dim);
      token.push_back({&member.rows->residual(), head, numbers, numbers + head_dim});
      numbers += 2 * head_dim;
    }
  }
  merge_token(token);
}

// Where a head's rows go to.
struct RowMoves {
  std::int64_t newest, oldest, leaving;
};
void move_rows(const RowMoves& moves, std::int64_t head, KeptRows& rows) {
  if (moves.leaving >= 0 && rows.is_code(moves.leaving)) {
    std::vector<float> memory(static_cast<std::size_t>(2 * rows.head_dim()));
    float *const key = memory.data(), *const value = key + rows.head_dim();
    rows.read(moves.oldest, head, key, value);
    rows.write(moves.leaving, head, key, value);
    rows.copy_columns(moves.oldest, moves.leaving, head);
  } else if (moves.leaving >= 0 && moves.leaving != moves.oldest) {
    rows.copy(moves.oldest, moves.leaving, head);
  }
  rows.copy(moves.newest, moves.oldest, head);
}

// The ring's oldest token makes room for the newest.
void take_in(const TokenPolicy& policy, const KeptMembers& layers) {
  const RunningLayout layout = running_layout(policy, layers.choice.budget);
  const KeptRows& first = layers.first();
  const std::int64_t newest = layout.rows();
  const std::int64_t oldest =
      layout.sinks + layout.context + first.position(newest, 0) % layout.ring;
  for (const HeadRange& heads : head_ranges(first)) {
    RowMoves moves{.newest = newest, .oldest = oldest, .leaving = -1};
    if (layout.context > 0) {
      // The context's row that leaves, or the ring's oldest.
      moves.leaving = first.least_row(layout.sinks, layout.sinks + layout.context,
                                      policy.released_step ? layout.sinks : oldest, heads.first);
      if (policy.residual_slots > 0) {
        merge_row(layers, heads, moves.leaving);
      }
    }
    for (const KeptMember& member : layers.members) {
      for (std::int64_t head = heads.first; head < heads.last; ++head) {
        move_rows(moves, head, *member.rows);
      }
    }
  }
  for (const KeptMember& member : layers.members) {
    member.rows->truncate(newest);
  }
}

}  // namespace

void finish_running_prompt(const TokenPolicy& policy, const KeptMembers& layers) {
  KeptRows& rows = layers.first();
  const RunningLayout layout = running_layout(policy, layers.choice.budget);
  layers.choice.is_laid_out = false;
  if (rows.num_rows() > (rows.residual().empty() ? layers.choice.budget : layout.rows())) {
    reduce(policy, layers);
  }
}

void finish_running_token(const TokenPolicy& policy, const KeptMembers& layers) {
  const KeptGroup& choice = layers.choice;
  if (choice.budget == 0) {
    return;  // a share of no prompt
  }
  const KeptRows& rows = layers.first();
  const std::int64_t full = running_layout(policy, choice.budget).rows();
  const bool has_room =
      rows.num_rows() <= (rows.residual().empty() && !choice.is_laid_out ? choice.budget : full);
  if (!has_room) {
    choice.is_laid_out ? take_in(policy, layers) : reduce(policy, layers);
  }
}

}  // namespace kvc
