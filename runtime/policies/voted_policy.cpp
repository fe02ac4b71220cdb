// SnapKV (arXiv 2404.14469) and PyramidKV (2406.02069): once a prompt has been read, its last queries vote on
// the tokens before them.
#include <algorithm>

#include "runtime/policies/token_policies.h"

namespace kvc {

at::Tensor best_voted(const TokenPolicy& policy, const at::Tensor& votes, std::int64_t count) {
  const at::Tensor pooled =
      at::max_pool1d(at::constant_pad_nd(
                         votes.t(), {policy.pool_width / 2, (policy.pool_width - 1) / 2}, -1.0),
                     {policy.pool_width}, {1})
          .t();  // [candidates, num_kv_heads]
  const auto [sorted, order] = at::sort(pooled, /*stable=*/true, 0, /*descending=*/true);
  return std::get<0>(at::sort(order.narrow(0, 0, count), 0));
}

// The window and, of the tokens before it, each head's best by votes that are max-pooled over neighbours.
void select_voted(const TokenPolicy& policy, const KeptMembers& layers) {
  const std::int64_t num_rows = layers.first().num_rows(), budget = layers.choice.budget;
  if (num_rows <= budget) {
    return;
  }
  const std::int64_t candidates = num_rows - policy.window_tokens;
  const at::Tensor best = best_voted(policy, layers.choice.scores.narrow(0, 0, candidates),
                                     budget - policy.window_tokens);
  const at::Tensor window =
      at::arange(candidates, num_rows, at::kLong).unsqueeze(1).expand({-1, best.size(1)});
  const at::Tensor stay = at::cat({best, window});
  for (const KeptMember& member : layers.members) {
    member.rows->keep(layers.first().per_head() ? stay : stay.select(1, 0), member.turn);
  }
}

}  // namespace kvc
