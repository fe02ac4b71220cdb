#include <algorithm>
#include <cmath>
#include <vector>

#include "model/kernels/causal_attention.h"
#include "model/kernels/element.h"

namespace kvc {
namespace {

// Queries times heads, which a tile of keys is packed for. Few queries are shared out among the threads.
constexpr std::int64_t kRowsPerTask = 512, kFewRows = 64;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t queries_per_task(const CausalAttentionParams& params) {
  const std::int64_t of_thread =
      divide_up(params.num_queries * params.num_heads, params.num_threads);
  return divide_up(std::clamp(of_thread, kFewRows, kRowsPerTask),
                   params.num_heads / params.num_kv_heads);
}

double score(const CausalAttentionParams& params, const std::uint16_t* query,
             const std::uint16_t* key) {
  double sum = 0;
  for (std::int64_t c = 0; c < params.head_dim; ++c) {
    sum += static_cast<double>(float_of_bfloat16(query[c])) * float_of_bfloat16(key[c]);
  }
  sum *= params.scale;
  return params.softcap == 0 ? sum : params.softcap * std::tanh(sum / params.softcap);
}

void attend(const CausalAttentionParams& params, std::int64_t query, std::int64_t head,
            std::uint16_t* output) {
  const std::int64_t kv_head = head / (params.num_heads / params.num_kv_heads);
  const std::int64_t last = params.num_keys - params.num_queries + query;
  const std::int64_t first =
      params.window == 0 ? 0 : std::max<std::int64_t>(0, last - params.window + 1);
  std::vector<double> weights;
  for (std::int64_t token = first; token <= last; ++token) {
    weights.push_back(score(params,
                            params.query + query * params.query_stride + head * params.head_dim,
                            params.key + token * params.key_stride + kv_head * params.head_dim));
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double total = 0;
  for (double& weight : weights) {
    weight = std::exp(weight - largest);
    total += weight;
  }
  for (std::int64_t c = 0; c < params.value_dim; ++c) {
    double sum = 0;
    for (std::int64_t token = first; token <= last; ++token) {
      const std::uint16_t* row =
          params.value + token * params.value_stride + kv_head * params.value_dim;
      sum += weights[static_cast<std::size_t>(token - first)] * float_of_bfloat16(row[c]);
    }
    output[c] = bfloat16_of(static_cast<float>(sum / total));
  }
}

}  // namespace

std::int64_t causal_attention_tasks(const CausalAttentionParams& params) {
  const std::int64_t queries = queries_per_task(params);
  return divide_up(params.num_queries, queries) * params.num_kv_heads;
}

CausalAttentionPart causal_attention_part(const CausalAttentionParams& params, std::int64_t task) {
  const std::int64_t queries = queries_per_task(params);
  const std::int64_t blocks = divide_up(params.num_queries, queries);
  const std::int64_t first = (blocks - 1 - task / params.num_kv_heads) * queries;
  return {task % params.num_kv_heads, first, std::min(first + queries, params.num_queries)};
}

void causal_attention_task_reference(const CausalAttentionParams& params, std::int64_t task,
                                     std::uint16_t* output) {
  const CausalAttentionPart part = causal_attention_part(params, task);
  const std::int64_t heads = params.num_heads / params.num_kv_heads;
  for (std::int64_t query = part.first; query < part.last; ++query) {
    for (std::int64_t head = part.kv_head * heads; head < (part.kv_head + 1) * heads; ++head) {
      attend(params, query, head, output + (query * params.num_heads + head) * params.value_dim);
    }
  }
}

}  // namespace kvc
