#include <algorithm>
#include <cmath>

#include "runtime/policies/token_policies.h"

namespace kvc {

std::int64_t scores_at_once(at::Device device) {
  return std::int64_t{1} << (device.is_cpu() ? 22 : 26);
}

std::int64_t scoring_queries(const TokenPolicy& policy, std::int64_t num_new) {
  if (!policy.has_scores()) {
    return std::min(num_new, policy.is_running() ? 0 : policy.window_tokens);
  }
  if (policy.lambda >= 1) {
    return num_new;
  }
  if (policy.lambda == 0) {
    return 1;
  }
  // A query gives at most 1: those before the last m add less than lambda^m / (1 - lambda).
  const double most = std::log(kScoreError * (1 - policy.lambda)) / std::log(policy.lambda);
  return std::min(num_new, static_cast<std::int64_t>(std::ceil(most)));
}

at::Tensor attention_scores(const PromptEnd& end, const at::Tensor& key, const SlotRows& slots) {
  const std::int64_t num_rows = key.size(0), num_kv_heads = key.size(1), head_dim = key.size(2);
  const std::int64_t num_queries = end.query.size(0), num_heads = end.query.size(1);
  const std::int64_t heads_per_kv = num_heads / num_kv_heads;
  const double scale = end.rule.scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)));
  const at::Tensor keys = key.permute({1, 2, 0});  // [num_kv_heads, head_dim, n]
  const at::TensorOptions indices = key.options().dtype(at::kLong);
  const at::Tensor rows = at::arange(num_rows, indices);
  at::Tensor total = at::zeros({num_kv_heads, num_rows}, key.options().dtype(at::kFloat));
  const std::int64_t step = std::max<std::int64_t>(
      1, scores_at_once(key.device()) / std::max<std::int64_t>(1, num_heads * num_rows));
  for (std::int64_t first = 0; first < num_queries; first += step) {
    const std::int64_t count = std::min(step, num_queries - first);
    const at::Tensor query = (end.query.narrow(0, first, count).to(at::kFloat) * scale)
                                 .view({count, num_kv_heads, heads_per_kv, head_dim})
                                 .permute({1, 2, 0, 3})
                                 .reshape({num_kv_heads, heads_per_kv * count, head_dim});
    at::Tensor scores = at::bmm(query, keys);
    at::Tensor of_slots =  // what they take of the softmax
        slots.key.defined() ? at::bmm(query, slots.key.permute({1, 2, 0})) : at::Tensor();
    for (at::Tensor* x : {&scores, &of_slots}) {
      if (end.rule.softcap != 0 && x->defined()) {
        x->div_(end.rule.softcap).tanh_().mul_(end.rule.softcap);
      }
    }
    // Query i is that of row num_rows - num_queries + i.
    const at::Tensor own =
        at::arange(num_rows - num_queries + first, num_rows - num_queries + first + count, indices);
    scores.view({num_kv_heads, heads_per_kv, count, num_rows})
        .masked_fill_(rows.unsqueeze(0) > own.unsqueeze(1), -INFINITY);
    if (of_slots.defined()) {
      of_slots.add_(slots.bias.t().unsqueeze(1));
      scores = at::cat({scores, of_slots}, -1);
    }
    const at::Tensor probabilities = scores.softmax(-1).narrow(-1, 0, num_rows);
    const at::Tensor decay =
        at::pow(end.policy.lambda, at::arange(num_queries - 1 - first,
                                              num_queries - 1 - first - count, -1, at::kDouble))
            .to(total.options())
            .repeat({heads_per_kv});  // rows are heads, then queries
    total.add_(at::matmul(decay.view({1, 1, -1}), probabilities).squeeze(1));
  }
  return total.t().contiguous();
}

}  // namespace kvc
