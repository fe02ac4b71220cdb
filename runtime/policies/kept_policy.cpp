// What policies do with the rows of plain layers.
//
// Under a fixed budget rows lie as RunningLayout says, once it is full: sinks by position; the context; the ring, where
// the token at position p is in place p mod ring; then the token that was read last.
#include <optional>
#include <vector>

#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

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

// Rows of all members that leave, as numbers. Codes that share scales are read all at once.
class LeavingRows {
 public:
  explicit LeavingRows(const KeptMembers& layers) : layers_(layers) {
    for (const KeptMember& member : layers.members) {
      all_.push_back(member.rows->store().num_codes() == 0 ? KeptContent()
                                                           : member.rows->content(member.turn));
    }
  }

  // Valid until the next call.
  const std::vector<LeavingToken>& token(const HeadRange& heads, std::int64_t row) {
    const std::int64_t head_dim = layers_.first().head_dim();
    const auto parts = static_cast<std::int64_t>(all_.size()) * (heads.last - heads.first);
    memory_.resize(static_cast<std::size_t>(2 * head_dim * parts));
    token_.clear();
    float* key = memory_.data();
    for (std::size_t member = 0; member < all_.size(); ++member) {
      KeptRows& rows = *layers_.members[member].rows;
      for (std::int64_t head = heads.first; head < heads.last; ++head, key += 2 * head_dim) {
        const auto number_of = [&](const at::Tensor& x) {
          return x[row][head].const_data_ptr<float>();
        };
        const KeptContent& all = all_[member];
        if (!all.key.defined()) {
          rows.read(row, head, key, key + head_dim);
        }
        token_.push_back({.slots = &rows.residual(),
                          .kv_head = head,
                          .key = all.key.defined() ? number_of(all.key) : key,
                          .value = all.key.defined() ? number_of(all.value) : key + head_dim});
      }
    }
    return token_;
  }

 private:
  const KeptMembers& layers_;
  std::vector<KeptContent> all_;  // of every member; empty: rows are read one by one
  std::vector<float> memory_;
  std::vector<LeavingToken> token_;
};

void merge_rows(const TokenPolicy& policy, LeavingRows& rows, const HeadRange& heads,
                const std::vector<std::int64_t>& merged) {
  const auto count = static_cast<std::int64_t>(merged.size());
  const std::int64_t per_slot = (count + policy.residual_slots - 1) / policy.residual_slots;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<LeavingToken>& token = rows.token(heads, merged[static_cast<std::size_t>(i)]);
    if (!policy.contiguous_merge) {
      merge_token(token);
      continue;
    }
    for (const LeavingToken& part : token) {
      part.slots->add(i / per_slot, part.kv_head, part.key, part.value, 1);
    }
  }
}

// Rows in any order become those that the policy keeps.
void keep_chosen(const TokenPolicy& policy, const KeptMembers& layers) {
  const KeptRows& first = layers.first();
  std::optional<LeavingRows> leaving;
  if (policy.residual_slots > 0) {
    leaving.emplace(layers);
  }
  const at::Tensor positions = first.positions();
  const at::Tensor scores = first.has_scores() ? first.scores() : layers.choice.scores;
  std::vector<at::Tensor> kept;
  for (const HeadRange& heads : head_ranges(first)) {
    const auto own = [&](const at::Tensor& x) {
      return x.defined() ? x.select(1, heads.first) : x;
    };
    const ChosenRows rows =
        choose_rows({policy, layers.choice.budget}, own(positions), own(scores));
    if (leaving) {
      merge_rows(policy, *leaving, heads, rows.leaving);
    }
    kept.push_back(rows.kept);
  }
  leaving.reset();
  const at::Tensor indices = first.per_head() ? at::stack(kept, 1) : kept.front();
  for (const KeptMember& member : layers.members) {
    member.rows->keep(indices, member.turn);
    if (policy.is_running()) {
      const RunningLayout layout = running_layout(policy, layers.choice.budget);
      member.rows->code(layout.sinks, layout.context);
      member.rows->reserve(layout.rows() + 1);
    }
  }
  layers.choice.is_laid_out = policy.is_running();
}

bool any_leave(const TokenPolicy& policy, const KeptMembers& layers, bool is_step) {
  const KeptRows& rows = layers.first();
  return layers.choice.leaving(policy, rows.num_rows(), is_step, !rows.residual().empty()) > 0;
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

void finish_prompt(const TokenPolicy& policy, const KeptMembers& layers) {
  layers.choice.is_laid_out = false;
  if (any_leave(policy, layers, false)) {
    keep_chosen(policy, layers);
  }
}

void finish_token(const TokenPolicy& policy, const KeptMembers& layers) {
  if (any_leave(policy, layers, true)) {
    layers.choice.is_laid_out ? take_in(policy, layers) : keep_chosen(policy, layers);
  }
}

}  // namespace kvc
