// Policies of a fixed budget, which a cache stays within however long the text grows: ZeroMerge, H2O
// (arXiv 2306.14048: no residual, lambda = 1) and StreamingLLM (2309.17453: sinks and ring alone).
//
// Rows lie as RunningLayout says, once the budget is full: sinks by position; the context; the ring, where the
// token at position p is in place p mod ring; then the token that was read last.
#include <algorithm>
#include <cmath>
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

HeadRows sort_rows(const RunningLayout& layout, const KeptContent& all, std::int64_t head) {
  const std::int64_t num_rows = all.positions.size(0);
  const auto positions = all.positions.accessor<std::int64_t, 2>();
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
    const auto scores = all.scores.accessor<float, 2>();
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

void merge_rows(const TokenPolicy& policy, const KeptContent& all, std::int64_t head,
                const std::vector<std::int64_t>& merged, ResidualSlots& slots) {
  if (slots.num_slots() == 0) {
    return;
  }
  const auto count = static_cast<std::int64_t>(merged.size());
  const std::int64_t per_slot = (count + slots.num_slots() - 1) / slots.num_slots();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = merged[static_cast<std::size_t>(i)];
    const at::Tensor key = all.key.select(0, row).select(0, head);
    const at::Tensor value = all.value.select(0, row).select(0, head);
    if (policy.contiguous_merge) {
      slots.add(i / per_slot, head, key.const_data_ptr<float>(), value.const_data_ptr<float>(), 1);
    } else {
      slots.merge(head, key.const_data_ptr<float>(), value.const_data_ptr<float>());
    }
  }
}

// From rows in any order to the layout.
void reduce(const TokenPolicy& policy, KeptLayer& layer, const KeptRows::TurnKeys& turn) {
  const RunningLayout layout = running_layout(policy, layer.budget);
  KeptRows& rows = layer.rows;
  const KeptContent all = rows.content(turn);
  std::vector<at::Tensor> kept;
  // Where all heads keep the same tokens, no scores and no slots tell them apart.
  for (std::int64_t head = 0; head < all.positions.size(1); ++head) {
    const HeadRows of_head = sort_rows(layout, all, head);
    merge_rows(policy, all, head, of_head.merged, rows.residual());
    kept.push_back(at::tensor(of_head.kept, at::kLong));
  }
  rows.keep(kept.size() == 1 && all.key.size(1) > 1 ? kept.front() : at::stack(kept, 1), turn);
  rows.code(layout.sinks, layout.context);
  rows.reserve(layout.rows() + 1);
  layer.is_laid_out = true;
}

// The ring's oldest token makes room for the newest.
void take_in(const TokenPolicy& policy, KeptLayer& layer) {
  const RunningLayout layout = running_layout(policy, layer.budget);
  KeptRows& rows = layer.rows;
  const std::int64_t newest = layout.rows();
  const std::int64_t oldest =
      layout.sinks + layout.context + rows.position(newest, 0) % layout.ring;
  std::vector<float> memory(static_cast<std::size_t>(2 * rows.head_dim()));
  float* key = memory.data();
  float* value = key + rows.head_dim();
  for (std::int64_t head = 0; head < rows.num_kv_heads(); ++head) {
    if (layout.context > 0) {
      // The context's row that leaves, or the ring's oldest.
      const std::int64_t leaving =
          rows.least_row(layout.sinks, layout.sinks + layout.context,
                         policy.released_step ? layout.sinks : oldest, head);
      if (rows.residual().num_slots() > 0) {
        rows.read(leaving, head, key, value);
        rows.residual().merge(head, key, value);
      }
      if (rows.is_code(leaving)) {
        rows.read(oldest, head, key, value);
        rows.write(leaving, head, key, value);
        rows.copy_columns(oldest, leaving, head);
      } else if (leaving != oldest) {
        rows.copy(oldest, leaving, head);
      }
    }
    rows.copy(newest, oldest, head);
  }
  rows.truncate(newest);
}

}  // namespace

void finish_running_prompt(const PromptEnd& end, KeptLayer& layer) {
  KeptRows& rows = layer.rows;
  if (rows.has_scores()) {
    KeptContent all = rows.content(end.turn);
    const double decay = std::pow(end.policy.lambda, static_cast<double>(end.num_new));
    all.scores =
        all.scores * decay + attention_scores(end, all.key,
                                              slot_keys(rows.residual(), rows.num_kv_heads(),
                                                        rows.head_dim(), end.policy.alpha));
    rows.set_scores(all.scores);
  }
  const RunningLayout layout = running_layout(end.policy, layer.budget);
  layer.is_laid_out = false;
  if (rows.num_rows() > (rows.residual().empty() ? layer.budget : layout.rows())) {
    reduce(end.policy, layer, end.turn);
  }
}

void finish_running_token(const TokenPolicy& policy, KeptLayer& layer,
                          const KeptRows::TurnKeys& turn) {
  if (layer.budget == 0) {
    return;  // a share of no prompt
  }
  const std::int64_t full = running_layout(policy, layer.budget).rows();
  const bool has_room = layer.rows.num_rows() <=
                        (layer.rows.residual().empty() && !layer.is_laid_out ? layer.budget : full);
  if (!has_room) {
    layer.is_laid_out ? take_in(policy, layer) : reduce(policy, layer, turn);
  }
}

}  // namespace kvc
