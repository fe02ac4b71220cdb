// The policies' choice of the tokens that stay.
//
// A fixed budget, which a cache stays within however long the text grows: ZeroMerge, H2O (arXiv 2306.14048: no residual,
// lambda = 1) and StreamingLLM (2309.17453: sinks and ring alone). Votes: SnapKV (2404.14469) and PyramidKV
// (2406.02069), where once a prompt has been read its last queries vote on the tokens before them.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

using Rows = std::vector<std::int64_t>;

Rows rows_by_position(const at::Tensor& positions) {
  const auto position = positions.accessor<std::int64_t, 1>();
  Rows rows(static_cast<std::size_t>(positions.size(0)));
  std::iota(rows.begin(), rows.end(), 0);
  std::sort(rows.begin(), rows.end(),
            [&](std::int64_t a, std::int64_t b) { return position[a] < position[b]; });
  return rows;
}

// Between sinks and ring, the context keeps the rows of the highest scores; the later one of equals.
ChosenRows choose_running(const RowChoice& choice, const Rows& by_position,
                          const at::Tensor& positions, const at::Tensor& scores) {
  const RunningLayout layout = running_layout(choice.policy, choice.budget);
  const auto position = positions.accessor<std::int64_t, 1>();
  const auto sinks_end = by_position.begin() + layout.sinks;
  const auto ring_begin = by_position.end() - layout.ring;
  Rows candidates(sinks_end, ring_begin);
  const bool spares = choice.spares_newcomer && layout.context > 0;
  const auto ranked_end = candidates.end() - (spares ? 1 : 0);
  if (layout.context > 0) {
    const auto score = scores.accessor<float, 1>();
    std::sort(candidates.begin(), ranked_end, [&](std::int64_t a, std::int64_t b) {
      return std::tuple(-score[a], -position[a]) < std::tuple(-score[b], -position[b]);
    });
    std::rotate(candidates.begin(), ranked_end, candidates.end());
  }
  const auto context_end = candidates.begin() + layout.context;
  const auto position_less = [&](std::int64_t a, std::int64_t b) {
    return position[a] < position[b];
  };
  std::sort(candidates.begin(), context_end, position_less);
  std::sort(context_end, candidates.end(), position_less);
  ChosenRows rows;
  rows.kept.assign(by_position.begin(), sinks_end);
  rows.kept.insert(rows.kept.end(), candidates.begin(), context_end);
  rows.leaving.assign(context_end, candidates.end());
  rows.kept.resize(static_cast<std::size_t>(layout.rows()));
  for (auto row = ring_begin; row != by_position.end(); ++row) {
    rows.kept[static_cast<std::size_t>(layout.sinks + layout.context +
                                       position[*row] % layout.ring)] = *row;
  }
  return rows;
}

// The window and, of the rows before it, those of the most votes.
ChosenRows choose_voted(const RowChoice& choice, const Rows& by_position, const at::Tensor& votes) {
  const auto count = static_cast<std::int64_t>(by_position.size());
  const std::int64_t window = choice.policy.window_tokens;
  const at::Tensor of_candidates =
      votes.index_select(0, at::tensor(by_position, at::kLong)).narrow(0, 0, count - window);
  const at::Tensor best =
      best_voted(choice.policy, of_candidates.unsqueeze(1), choice.budget - window);
  at::Tensor stays = at::ones({count}, at::kBool);
  stays.narrow(0, 0, count - window).fill_(false).index_fill_(0, best.squeeze(1), true);
  const bool* stay = stays.const_data_ptr<bool>();
  ChosenRows rows;
  for (std::int64_t i = 0; i < count; ++i) {
    (stay[i] ? rows.kept : rows.leaving).push_back(by_position[static_cast<std::size_t>(i)]);
  }
  return rows;
}

}  // namespace

ChosenRows choose_rows(const RowChoice& choice, const at::Tensor& positions,
                       const at::Tensor& scores) {
  const Rows by_position = rows_by_position(positions);
  return choice.policy.is_running() ? choose_running(choice, by_position, positions, scores)
                                    : choose_voted(choice, by_position, scores);
}

at::Tensor best_voted(const TokenPolicy& policy, const at::Tensor& votes, std::int64_t count) {
  const at::Tensor pooled =
      at::max_pool1d(at::constant_pad_nd(
                         votes.t(), {policy.pool_width / 2, (policy.pool_width - 1) / 2}, -1.0),
                     {policy.pool_width}, {1})
          .t();  // [candidates, num_kv_heads]
  const auto [sorted, order] = at::sort(pooled, /*stable=*/true, 0, /*descending=*/true);
  return std::get<0>(at::sort(order.narrow(0, 0, count), 0));
}

std::vector<std::int64_t> staying_rows(std::int64_t num_rows,
                                       const std::vector<std::int64_t>& leaving) {
  std::vector<bool> leaves(static_cast<std::size_t>(num_rows));
  for (const std::int64_t row : leaving) {
    leaves[static_cast<std::size_t>(row)] = true;
  }
  std::vector<std::int64_t> staying;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    if (!leaves[static_cast<std::size_t>(row)]) {
      staying.push_back(row);
    }
  }
  return staying;
}

}  // namespace kvc
