#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/cuda/budget_step_body.h"

namespace kvc {
namespace {

// One KV head of one sequence.
struct Head {
  const BudgetStep& params;
  std::int64_t index, first_query;  // of the head among all; of its first query head
  int n;

  std::int64_t at(int slot) const {
    return (index * params.layout.slots() + slot) * params.head_dim;
  }
  float number(const void* base, std::int64_t i) const {
    const std::uint16_t bits = static_cast<const std::uint16_t*>(base)[i];
    return params.element == DeviceElement::kBFloat16 ? to_float(BFloat16{bits})
                                                      : to_float(Float16{bits});
  }
  void set(void* base, std::int64_t i, float x) const {
    static_cast<std::uint16_t*>(base)[i] = params.element == DeviceElement::kBFloat16
                                               ? narrow_bits(BFloat16{}, x)
                                               : narrow_bits(Float16{}, x);
  }
  float& score(int slot) const { return params.scores[index * params.layout.slots() + slot]; }
  float& count(int slot) const { return params.counts[index * params.layout.num_residual + slot]; }

  double product(const void* a, std::int64_t i, const void* b, std::int64_t j) const {
    double sum = 0;
    for (int c = 0; c < params.head_dim; ++c) {
      sum += static_cast<double>(number(a, i + c)) * number(b, j + c);
    }
    return sum;
  }
  void copy(int from, int to) const {
    for (int c = 0; c < params.head_dim; ++c) {
      set(params.keys, at(to) + c, number(params.keys, at(from) + c));
      set(params.values, at(to) + c, number(params.values, at(from) + c));
    }
    score(to) = score(from);
  }
};

// Attention of one query head; adds its probabilities to `sums` [slots + 1].
void attend(const Head& head, int query_head, std::vector<double>& sums) {
  const BudgetStep& p = head.params;
  const int slots = p.layout.slots();
  const BudgetFill fill = budget_fill(p.layout, head.n);
  const std::int64_t query = (head.first_query + query_head) * p.head_dim;
  const std::int64_t newest = head.index * p.head_dim;
  std::vector<double> weights(static_cast<std::size_t>(slots) + 1, 0.0);
  double max = -INFINITY, sum = 0;
  const auto score = [&](int slot) {
    const double product = slot == slots ? head.product(p.query, query, p.new_key, newest)
                                         : head.product(p.query, query, p.keys, head.at(slot));
    return product * p.scale +
           (slot < p.layout.num_residual ? p.alpha * std::log(head.count(slot)) : 0.0);
  };
  const auto held = [&](int slot) { return slot == slots || holds_token(p.layout, fill, slot); };
  for (int slot = 0; slot <= slots; ++slot) {
    max = held(slot) ? std::max(max, score(slot)) : max;
  }
  for (int slot = 0; slot <= slots; ++slot) {
    weights[static_cast<std::size_t>(slot)] = held(slot) ? std::exp(score(slot) - max) : 0;
    sum += weights[static_cast<std::size_t>(slot)];
  }
  for (int c = 0; c < p.head_dim; ++c) {
    double output = weights.back() * head.number(p.new_value, newest + c);
    for (int slot = 0; slot < slots; ++slot) {
      if (held(slot)) {
        output +=
            weights[static_cast<std::size_t>(slot)] * head.number(p.values, head.at(slot) + c);
      }
    }
    head.set(p.output, query + c, static_cast<float>(output / sum));
  }
  for (std::size_t slot = 0; slot < weights.size(); ++slot) {
    sums[slot] += weights[slot] / sum;
  }
}

void leave(const Head& head, int victim) {
  const BudgetStep& p = head.params;
  const BudgetFill fill = budget_fill(p.layout, head.n);
  if (p.layout.num_residual == 0) {
    return;
  }
  if (fill.residual < p.layout.num_residual) {
    head.count(fill.residual) = 1;
    return head.copy(victim, fill.residual);
  }
  int best = 0;
  for (int slot = 1; slot < p.layout.num_residual; ++slot) {
    if (head.product(p.keys, head.at(slot), p.keys, head.at(victim)) >
        head.product(p.keys, head.at(best), p.keys, head.at(victim))) {
      best = slot;
    }
  }
  for (void* rows : {p.keys, p.values}) {
    for (int c = 0; c < p.head_dim; ++c) {
      head.set(rows, head.at(best) + c,
               merged_number(head.number(rows, head.at(best) + c), head.count(best),
                             head.number(rows, head.at(victim) + c)));
    }
  }
  head.count(best) += 1;
  head.score(best) = std::max(head.score(best), head.score(victim));
}

void demote(const Head& head, int oldest) {
  const BudgetStep& p = head.params;
  const BudgetFill fill = budget_fill(p.layout, head.n);
  const int context = p.layout.num_residual;
  if (fill.context < p.layout.num_context) {
    return head.copy(oldest, context + fill.context);
  }
  int lowest = p.layout.num_context > 0 ? context : oldest;
  for (int i = 1; i < p.layout.num_context; ++i) {
    lowest = head.score(context + i) < head.score(lowest) ? context + i : lowest;
  }
  if (p.demotion == Demotion::kPaper && head.score(oldest) < head.score(lowest)) {
    lowest = oldest;
  }
  leave(head, lowest);
  if (lowest != oldest) {
    head.copy(oldest, lowest);
  }
}

void step(const Head& head) {
  const BudgetStep& p = head.params;
  const int slots = p.layout.slots();
  std::vector<double> sums(static_cast<std::size_t>(slots) + 1, 0.0);
  for (int query_head = 0; query_head < p.num_heads / p.num_kv_heads; ++query_head) {
    attend(head, query_head, sums);
  }
  const BudgetFill fill = budget_fill(p.layout, head.n);
  for (int slot = 0; slot < slots; ++slot) {
    if (holds_token(p.layout, fill, slot)) {
      head.score(slot) =
          p.decay * head.score(slot) + static_cast<float>(sums[static_cast<std::size_t>(slot)]);
    }
  }
  const int slot = p.layout.num_residual + p.layout.num_context + head.n % p.layout.num_ring;
  if (head.n >= p.layout.num_ring) {
    demote(head, slot);
  }
  for (int c = 0; c < p.head_dim; ++c) {
    head.set(p.keys, head.at(slot) + c, head.number(p.new_key, head.index * p.head_dim + c));
    head.set(p.values, head.at(slot) + c, head.number(p.new_value, head.index * p.head_dim + c));
  }
  head.score(slot) = static_cast<float>(sums.back());
}

}  // namespace

void budget_step_reference(const BudgetStep& params) {
  for (int sequence = 0; sequence < params.num_sequences; ++sequence) {
    for (int kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      const int heads = params.num_heads / params.num_kv_heads;
      step({params, std::int64_t{sequence} * params.num_kv_heads + kv_head,
            std::int64_t{sequence} * params.num_heads + std::int64_t{kv_head} * heads,
            params.num_tokens[sequence]});
    }
  }
}

}  // namespace kvc
