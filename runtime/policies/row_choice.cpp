// The policies' choice of the tokens that stay.
//
// A fixed budget, which a cache stays within however long the text grows: ZeroMerge, H2O (arXiv 2306.14048: no residual,
// lambda = 1) and StreamingLLM (2309.17453: sinks and ring alone). Votes: SnapKV (2404.14469) and PyramidKV
// (2406.02069), where once a prompt has been read its last queries vote on the tokens before them.
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

at::Tensor ascending(const at::Tensor& tokens) { return std::get<0>(at::sort(tokens, 1)); }

// The `count` best by votes [n, heads] max-pooled over neighbours, ascending. [count, heads]
at::Tensor best_voted(const TokenPolicy& policy, const at::Tensor& votes, std::int64_t count) {
  // A wider pool takes in no more candidates.
  const std::int64_t width = std::min<std::int64_t>(policy.pool_width, 2 * votes.size(0) + 1);
  const at::Tensor pooled =
      at::max_pool1d(at::constant_pad_nd(votes.t(), {width / 2, (width - 1) / 2}, -1.0), {width},
                     {1})
          .t();  // [candidates, num_kv_heads]
  const auto [sorted, order] = at::sort(pooled, /*stable=*/true, 0, /*descending=*/true);
  return std::get<0>(at::sort(order.narrow(0, 0, count), 0));
}

}  // namespace

RunningChoice choose_running(const RunningLayout& layout, const at::Tensor& positions,
                             const at::Tensor& scores, bool spares_newcomer) {
  const std::int64_t num_tokens = positions.size(1), first_ring = num_tokens - layout.ring;
  const auto tokens = [&](std::int64_t first, std::int64_t last) {
    return at::arange(first, last, positions.options()).expand({positions.size(0), -1});
  };
  at::Tensor candidates = tokens(layout.sinks, first_ring);
  if (layout.context > 0) {
    const std::int64_t ranked = candidates.size(1) - (spares_newcomer ? 1 : 0);
    // The later token of equal scores first.
    const at::Tensor order =
        std::get<1>(at::sort(scores.narrow(1, layout.sinks, ranked).flip({1}), /*stable=*/true,
                             /*dim=*/1, /*descending=*/true));
    candidates = at::cat({candidates.slice(1, ranked), layout.sinks + ranked - 1 - order}, 1);
  }
  const at::Tensor places = positions.slice(1, first_ring).remainder(layout.ring),
                   ring =
                       at::empty_like(places).scatter_(1, places, tokens(first_ring, num_tokens));
  return {
      at::cat({tokens(0, layout.sinks), ascending(candidates.narrow(1, 0, layout.context)), ring},
              1),
      ascending(candidates.slice(1, layout.context))};
}

at::Tensor voted_rows(const TokenPolicy& policy, const at::Tensor& votes, std::int64_t budget) {
  const std::int64_t candidates = votes.size(0) - policy.window_tokens;
  const at::Tensor best = best_voted(policy, votes.narrow(0, 0, candidates),
                                     budget - policy.window_tokens),
                   window = at::arange(candidates, votes.size(0), best.options());
  return at::cat({best, window.unsqueeze(1).expand({-1, votes.size(1)})});
}

ChosenRows choose_rows(const RowChoice& choice, const at::Tensor& positions,
                       const at::Tensor& scores) {
  const at::Tensor by_position = positions.argsort();
  const auto own = [&](const at::Tensor& x) {
    return x.defined() ? x.index_select(0, by_position).unsqueeze(0) : x;
  };
  RunningChoice chosen;
  if (choice.policy.is_running()) {
    chosen = choose_running(running_layout(choice.policy, choice.budget), own(positions),
                            own(scores), choice.spares_newcomer);
  } else {
    chosen.kept = voted_rows(choice.policy, own(scores).t(), choice.budget).t();
    chosen.leaving = at::ones_like(by_position).index_fill_(0, chosen.kept[0], 0).nonzero().t();
  }
  const at::Tensor leaving = by_position.index_select(0, chosen.leaving[0]);
  const auto* first = leaving.const_data_ptr<std::int64_t>();
  return {by_position.index_select(0, chosen.kept[0]), {first, first + leaving.size(0)}};
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
