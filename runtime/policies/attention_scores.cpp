#include <algorithm>
#include <cmath>

#include "runtime/policies/token_policies.h"

namespace kvc {

std::int64_t scores_at_once(at::Device device) {
  return std::int64_t{1} << (device.is_cpu() ? 22 : 26);
}

std::int64_t queries_at_once(at::Device device, std::int64_t products) {
  return std::max<std::int64_t>(1, scores_at_once(device) / std::max<std::int64_t>(1, products));
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

namespace {

// Adds those of some KV heads to total [heads, rows]. query [n, heads, heads per KV head, head_dim], in the order of the
// last rows; keys [heads, head_dim, rows].
void add_scores(const PromptEnd& end, std::int64_t at_once, const at::Tensor& query,
                const at::Tensor& keys, const SlotRows& slots, const at::Tensor& total) {
  const std::int64_t num_queries = query.size(0), num_kv_heads = query.size(1);
  const std::int64_t heads_per_kv = query.size(2), head_dim = query.size(3);
  const std::int64_t num_rows = keys.size(2);
  const double scale = end.rule.scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)));
  const at::TensorOptions indices = keys.options().dtype(at::kLong);
  const at::Tensor rows = at::arange(num_rows, indices);
  for (std::int64_t first = 0; first < num_queries; first += at_once) {
    const std::int64_t count = std::min(at_once, num_queries - first);
    const at::Tensor part = (query.narrow(0, first, count).to(at::kFloat) * scale)
                                .permute({1, 2, 0, 3})
                                .reshape({num_kv_heads, heads_per_kv * count, head_dim});
    at::Tensor scores = at::bmm(part, keys);
    at::Tensor of_slots =  // what they take of the softmax
        slots.key.defined() ? at::bmm(part, slots.key.permute({1, 2, 0})) : at::Tensor();
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
    at::_softmax_out(scores, scores, -1, /*half_to_float=*/false);
    const at::Tensor probabilities = scores.narrow(-1, 0, num_rows);
    const at::Tensor decay =
        at::pow(end.policy.lambda, at::arange(num_queries - 1 - first,
                                              num_queries - 1 - first - count, -1, at::kDouble))
            .to(total.options())
            .repeat({heads_per_kv});  // rows are heads, then queries
    total.add_(at::matmul(decay.view({1, 1, -1}), probabilities).squeeze(1));
  }
}

}  // namespace

at::Tensor attention_scores(const PromptEnd& end, const at::Tensor& key, const SlotRows& slots) {
  const std::int64_t num_rows = key.size(0), num_kv_heads = key.size(1), head_dim = key.size(2);
  const std::int64_t num_queries = end.query.size(0), num_heads = end.query.size(1);
  const at::Tensor query =
      end.query.view({num_queries, num_kv_heads, num_heads / num_kv_heads, head_dim});
  const at::Tensor total = at::zeros({num_kv_heads, num_rows}, key.options().dtype(at::kFloat));
  const std::int64_t at_once = queries_at_once(key.device(), num_heads * num_rows);
  const std::int64_t heads = key.is_cpu() ? 1 : num_kv_heads;  // a GPU has room, and is kept busy
  for (std::int64_t head = 0; head < num_kv_heads; head += heads) {
    const auto own = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(1, head, heads) : x;
    };
    add_scores(end, at_once, own(query), own(key).to(at::kFloat).permute({1, 2, 0}),
               {own(slots.key), {}, own(slots.bias)}, total.narrow(0, head, heads));
  }
  return total.t().contiguous();
}

}  // namespace kvc
