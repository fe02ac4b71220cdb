#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/cuda/budget_places.h"
#include "runtime/kernels/quantise.h"

namespace kvc {
namespace {

// One KV head of one sequence.
struct Head {
  const BudgetStep& params;
  const BudgetCache& cache;
  std::int64_t kv_head, newest,
      first_query;  // among all: of the new token, of its first query head
  int n;
  BudgetFill fill;

  // 16-bit numbers.
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
  std::int64_t row(int i) const { return kv_head * cache.capacity + i; }
  BudgetPlace place(int i) const {
    return budget_place(cache, params.context, static_cast<int>(kv_head), i);
  }
  std::uint8_t* codes(bool is_key, const BudgetPlace& of) const {
    return (is_key ? cache.key_codes : cache.value_codes) +
           of.index * code_row_bytes(params.context, params.head_dim);
  }
  float row_number(bool is_key, int i, int channel) const {
    const BudgetPlace at = place(i);
    if (!at.is_code) {
      return number(is_key ? cache.keys : cache.values, at.index * params.head_dim + channel);
    }
    float four[4];
    decode_four(params.context, codes(is_key, at), params.head_dim, channel / 4 * 4, four);
    return four[channel % 4];
  }
  void set_row(bool is_key, int i, const std::vector<float>& numbers) const {
    const BudgetPlace at = place(i);
    if (at.is_code) {
      quantise_rows_reference(
          {.from = numbers.data(),
           .count = 1,
           .width = params.head_dim,
           .head_dim = params.head_dim,
           .element = params.context == DeviceElement::kInt8 ? KvElement::kInt8 : KvElement::kInt4,
           .to = codes(is_key, at)});
      return;
    }
    for (int c = 0; c < params.head_dim; ++c) {
      set(is_key ? cache.keys : cache.values, at.index * params.head_dim + c,
          numbers[static_cast<std::size_t>(c)]);
    }
  }
  std::int64_t slot(int i) const { return kv_head * cache.layout.num_residual + i; }

  // Entries of attention: rows, slots, the new token.
  int entries() const { return fill.rows + fill.residual + 1; }
  bool is_newest(int entry) const { return entry + 1 == entries(); }
  float entry_number(int entry, int channel, bool is_key) const {
    const int dim = params.head_dim;
    if (entry < fill.rows) {
      return row_number(is_key, entry, channel);
    }
    if (is_newest(entry)) {
      return number(is_key ? params.new_key : params.new_value, newest * dim + channel);
    }
    return (is_key ? cache.residual_keys
                   : cache.residual_values)[slot(entry - fill.rows) * dim + channel];
  }
};

double score_of(const Head& head, int query_head, int entry) {
  const BudgetStep& p = head.params;
  double product = 0;
  for (int c = 0; c < p.head_dim; ++c) {
    product += static_cast<double>(
                   head.number(p.query, (head.first_query + query_head) * p.head_dim + c)) *
               head.entry_number(entry, c, true);
  }
  const bool is_slot = entry >= head.fill.rows && !head.is_newest(entry);
  return static_cast<double>(scaled_score(static_cast<float>(product), p.scale, p.softcap)) +
         (is_slot ? slot_bias(p.alpha, head.cache.counts[head.slot(entry - head.fill.rows)]) : 0);
}

// Attention of one query head; adds its probabilities to `sums` [entries].
void attend(const Head& head, int query_head, std::vector<double>& sums) {
  const BudgetStep& p = head.params;
  std::vector<double> weights;
  for (int entry = 0; entry < head.entries(); ++entry) {
    weights.push_back(score_of(head, query_head, entry));
  }
  const double max = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) {
    weight = std::exp(weight - max);
    sum += weight;
  }
  for (int c = 0; c < p.head_dim; ++c) {
    double output = 0;
    for (int entry = 0; entry < head.entries(); ++entry) {
      output += weights[static_cast<std::size_t>(entry)] / sum * head.entry_number(entry, c, false);
    }
    head.set(p.output, (head.first_query + query_head) * p.head_dim + c,
             static_cast<float>(output));
  }
  for (std::size_t entry = 0; entry < weights.size(); ++entry) {
    sums[entry] += weights[entry] / sum;
  }
}

void copy_row(const Head& head, int from, int to) {
  for (const bool is_key : {true, false}) {
    std::vector<float> numbers;
    for (int c = 0; c < head.params.head_dim; ++c) {
      numbers.push_back(head.row_number(is_key, from, c));
    }
    head.set_row(is_key, to, numbers);
  }
  head.cache.scores[head.row(to)] = head.cache.scores[head.row(from)];
  head.cache.positions[head.row(to)] = head.cache.positions[head.row(from)];
}

void merge(const Head& head, int leaving) {
  const BudgetStep& p = head.params;
  const BudgetCache& cache = head.cache;
  int best = 0;
  double largest = -INFINITY;
  for (int slot = 0; slot < cache.layout.num_residual; ++slot) {
    double likeness = 0;
    for (int c = 0; c < p.head_dim; ++c) {
      likeness += static_cast<double>(cache.residual_keys[head.slot(slot) * p.head_dim + c]) *
                  head.row_number(true, leaving, c);
    }
    if (cache.counts[head.slot(slot)] == 0) {
      best = slot;
      break;
    }
    if (likeness > largest) {
      largest = likeness;
      best = slot;
    }
  }
  float& count = cache.counts[head.slot(best)];
  for (int c = 0; c < p.head_dim; ++c) {
    const std::int64_t to = head.slot(best) * p.head_dim + c;
    cache.residual_keys[to] =
        merged_number(cache.residual_keys[to], count, head.row_number(true, leaving, c));
    cache.residual_values[to] =
        merged_number(cache.residual_values[to], count, head.row_number(false, leaving, c));
  }
  count += 1;
}

void make_room(const Head& head, int oldest) {
  const BudgetCache& cache = head.cache;
  const BudgetLayout& layout = cache.layout;
  const auto chosen = [&](int row) {
    return Chosen{cache.scores[head.row(row)], cache.positions[head.row(row)], row};
  };
  Chosen lowest =
      head.params.demotion == Demotion::kPaper ? chosen(oldest) : chosen(layout.num_sinks);
  for (int i = 0; i < layout.num_context; ++i) {
    lowest = lower(lowest, chosen(layout.num_sinks + i));
  }
  if (layout.num_residual > 0) {
    merge(head, lowest.row);
  }
  if (lowest.row != oldest) {
    copy_row(head, oldest, lowest.row);
  }
}

void step(const Head& head) {
  const BudgetStep& p = head.params;
  const BudgetCache& cache = head.cache;
  std::vector<double> sums(static_cast<std::size_t>(head.entries()), 0.0);
  for (int query_head = 0; query_head < p.num_heads / p.num_kv_heads; ++query_head) {
    attend(head, query_head, sums);
  }
  for (int row = 0; row < head.fill.rows && cache.scores != nullptr; ++row) {
    float& score = cache.scores[head.row(row)];
    score = p.decay * score + static_cast<float>(sums[static_cast<std::size_t>(row)]);
  }
  const int to = head.fill.is_laid_out ? ring_row(cache.layout, head.n) : head.n;
  if (head.fill.is_laid_out && cache.layout.num_context > 0) {
    make_room(head, to);
  }
  for (const bool is_key : {true, false}) {
    std::vector<float> numbers;
    for (int c = 0; c < p.head_dim; ++c) {
      numbers.push_back(head.entry_number(head.entries() - 1, c, is_key));
    }
    head.set_row(is_key, to, numbers);
  }
  if (cache.scores != nullptr) {
    cache.scores[head.row(to)] = static_cast<float>(sums.back());
    cache.positions[head.row(to)] = head.n;
  }
}

}  // namespace

void budget_step_reference(const BudgetStep& params) {
  for (int sequence = 0; sequence < params.num_sequences; ++sequence) {
    const BudgetCache& cache = params.caches[sequence];
    const int n = params.num_tokens[sequence];
    for (int kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      const int heads = params.num_heads / params.num_kv_heads;
      step({params, cache, kv_head, std::int64_t{sequence} * params.num_kv_heads + kv_head,
            std::int64_t{sequence} * params.num_heads + std::int64_t{kv_head} * heads, n,
            budget_fill(cache.layout, n)});
    }
  }
}

}  // namespace kvc
