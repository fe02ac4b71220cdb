#include "runtime/reuse/recompute_plan.h"

#include <algorithm>
#include <cmath>

namespace kvc {
namespace {

at::Tensor ascending(const at::Tensor& tokens) { return std::get<0>(tokens.sort()); }

// Largest first.
at::Tensor order_of(const at::Tensor& values) {
  return at::argsort(values, /*stable=*/true, /*dim=*/0, /*descending=*/true);
}

std::int64_t share_of(double share, std::int64_t count) {
  return std::clamp<std::int64_t>(std::llround(share * static_cast<double>(count)), 0, count);
}

// For `tokens` the `count` with the largest values.
at::Tensor largest(const at::Tensor& values, const at::Tensor& tokens, std::int64_t count) {
  return tokens.index_select(0, order_of(values.index_select(0, tokens)).narrow(0, 0, count));
}

at::Tensor is_in(const at::Tensor& tokens, std::int64_t num_tokens) {
  return at::zeros({num_tokens}, at::kBool).index_fill_(0, tokens, 1);
}

}  // namespace

HotTokens hot_tokens(const at::Tensor& attention, double recovery) {
  const std::int64_t num_tokens = attention.size(0);
  const at::Tensor order = order_of(attention);
  const at::Tensor sums = attention.index_select(0, order).to(at::kDouble).cumsum(0);
  const std::int64_t before = (sums < recovery * sums[num_tokens - 1]).sum().item<std::int64_t>();
  const std::int64_t count = std::min(before + 1, num_tokens);
  return {.hot = ascending(order.narrow(0, 0, count)),
          .ratio = static_cast<double>(count) / static_cast<double>(num_tokens)};
}

at::Tensor first_recomputed(const at::Tensor& deviation, const HotTokens& hot,
                            const ReuseOptions& options) {
  const std::int64_t num_tokens = deviation.size(0);
  const at::Tensor is_hot = is_in(hot.hot, num_tokens);
  const at::Tensor cold = is_hot.logical_not().nonzero().squeeze(1);
  at::Tensor chosen =
      is_in(largest(deviation, hot.hot, share_of(options.hot, hot.hot.size(0))), num_tokens);
  chosen.index_fill_(0, largest(deviation, cold, share_of(options.cold, cold.size(0))), 1);
  chosen[num_tokens - 1] = true;
  return chosen.nonzero().squeeze(1);
}

std::int64_t num_recomputed(std::int64_t layer, std::int64_t first_count, std::int64_t num_tokens,
                            const ReuseOptions& options) {
  const double first = static_cast<double>(first_count);
  const double end = std::max(static_cast<double>(options.least_tokens),
                              options.least * static_cast<double>(num_tokens));
  const double count = end + (first - end) * std::pow(options.decay, layer - 1);
  return std::clamp<std::int64_t>(std::llround(count), 1, first_count);
}

at::Tensor next_recomputed(const at::Tensor& deviation, std::int64_t count) {
  const std::int64_t last = deviation.size(0) - 1;
  const at::Tensor others = order_of(deviation.narrow(0, 0, last));
  return ascending(at::cat(
      {others.narrow(0, 0, std::min(count, last + 1) - 1), at::full({1}, last, at::kLong)}));
}

std::int64_t num_retained(int layer, int num_layers, std::int64_t num_tokens, double hot_ratio,
                          const ReuseOptions& options) {
  const double depth = num_layers > 1 ? static_cast<double>(layer) / (num_layers - 1) : 0;
  const double first = std::max(options.retain_first, hot_ratio);
  double share = 1;
  switch (options.retention) {
    case Retention::kAll:
      break;
    case Retention::kConstant:
      share = first;
      break;
    case Retention::kGrowth:
      share = std::pow(first, 1 - depth);
      break;
    case Retention::kDecay:
      share = first * std::pow(options.retain_last / first, depth);
      break;
  }
  return std::max<std::int64_t>(1, share_of(share, num_tokens));
}

at::Tensor retained_tokens(std::int64_t count, const at::Tensor& recomputed, const at::Tensor& hot,
                           const at::Tensor& attention) {
  const std::int64_t num_tokens = attention.size(0);
  at::Tensor rank = at::zeros({num_tokens}, at::kLong);
  rank.index_fill_(0, hot, 1);
  rank.index_fill_(0, recomputed, 2);
  rank[num_tokens - 1] = 3;
  const at::Tensor by_attention = order_of(attention);
  const at::Tensor order =
      by_attention.index_select(0, order_of(rank.index_select(0, by_attention)));
  return ascending(order.narrow(0, 0, std::min(count, num_tokens)));
}

}  // namespace kvc
