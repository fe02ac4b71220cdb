// The policies' choice for layers that keep the same tokens: one for all layers and heads.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "core/error.h"
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

std::vector<std::int64_t> rows_by_position(const at::Tensor& positions) {
  const auto position = positions.accessor<std::int64_t, 1>();
  std::vector<std::int64_t> rows(static_cast<std::size_t>(positions.size(0)));
  std::iota(rows.begin(), rows.end(), 0);
  std::sort(rows.begin(), rows.end(),
            [&](std::int64_t a, std::int64_t b) { return position[a] < position[b]; });
  return rows;
}

// As RunningLayout has them by position: sinks, context, ring.
std::vector<std::int64_t> leaving_budget(const GroupTokensLeft& group,
                                         std::vector<std::int64_t> rows, const at::Tensor& scores) {
  const RunningLayout layout = running_layout(group.policy, group.budget);
  const auto count = static_cast<std::int64_t>(rows.size());
  const bool has_room = group.has_merged || (group.is_step && group.is_laid_out)
                            ? count <= layout.rows()
                            : count <= group.budget;
  if (has_room || count <= layout.rows()) {
    return {};
  }
  // The released code never takes the token that leaves the ring.
  const bool spares_newcomer = group.is_step && group.is_laid_out && group.policy.released_step;
  std::vector<std::int64_t> candidates(
      rows.begin() + layout.sinks,
      rows.end() - layout.ring - (spares_newcomer && layout.context > 0 ? 1 : 0));
  if (layout.context > 0) {
    const auto score = scores.accessor<float, 1>();
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](std::int64_t a, std::int64_t b) { return score[a] < score[b]; });
  }
  candidates.resize(static_cast<std::size_t>(count - layout.rows()));
  return candidates;
}

std::vector<std::int64_t> leaving_votes(const GroupTokensLeft& group,
                                        const std::vector<std::int64_t>& rows,
                                        const at::Tensor& votes) {
  const auto count = static_cast<std::int64_t>(rows.size());
  if (group.is_step || count <= group.budget) {
    return {};
  }
  const std::int64_t candidates = count - group.policy.window_tokens;
  const at::Tensor of_rows =
      votes.index_select(0, at::tensor(rows, at::kLong)).narrow(0, 0, candidates).unsqueeze(1);
  const at::Tensor best =
      best_voted(group.policy, of_rows, group.budget - group.policy.window_tokens);
  at::Tensor stays = at::zeros({candidates}, at::kBool);
  stays.index_fill_(0, best.squeeze(1), true);
  std::vector<std::int64_t> leaving;
  for (std::int64_t i = 0; i < candidates; ++i) {
    if (!stays[i].item<bool>()) {
      leaving.push_back(rows[static_cast<std::size_t>(i)]);
    }
  }
  return leaving;
}

}  // namespace

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

std::vector<std::int64_t> leaving_rows(const GroupTokensLeft& group, const at::Tensor& positions,
                                       const at::Tensor& scores) {
  std::vector<std::int64_t> rows = rows_by_position(positions);
  std::vector<std::int64_t> leaving = group.policy.is_running()
                                          ? leaving_budget(group, std::move(rows), scores)
                                          : leaving_votes(group, rows, scores);
  const auto position = positions.accessor<std::int64_t, 1>();
  std::sort(leaving.begin(), leaving.end(),
            [&](std::int64_t a, std::int64_t b) { return position[a] < position[b]; });
  return leaving;
}

}  // namespace kvc
