#include "model/bfloat16_attention.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "model/fused_ops.h"
#include "model/kernels/causal_attention.h"
#include "model/parallel.h"

namespace kvc {
namespace {

// Heads of a token one after the other; tokens may lie apart.
at::Tensor in_rows(const at::Tensor& x) {
  const at::Tensor narrow = x.to(at::kBFloat16);
  return narrow.stride(2) == 1 && narrow.stride(1) == narrow.size(2) ? narrow : narrow.contiguous();
}

const std::uint16_t* numbers(const at::Tensor& x) {
  return static_cast<const std::uint16_t*>(x.const_data_ptr());
}

}  // namespace

bool can_attend_in_bfloat16(const at::Tensor& query, const AttentionRule& rule) {
  return query.is_cpu() && query.scalar_type() == at::kBFloat16 && !wants_gradient(query) &&
         rule.scale.value_or(1) > 0 && causal_attention_is_fast(query.size(-1));
}

at::Tensor bfloat16_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const AttentionRule& rule) {
  const at::Tensor queries = in_rows(query), keys = in_rows(key), values = in_rows(value);
  at::Tensor output = at::empty({query.size(0), query.size(1), value.size(2)}, queries.options());
  const CausalAttentionParams params{.query = numbers(queries),
                                     .key = numbers(keys),
                                     .value = numbers(values),
                                     .query_stride = queries.stride(0),
                                     .key_stride = keys.stride(0),
                                     .value_stride = values.stride(0),
                                     .num_queries = query.size(0),
                                     .num_keys = key.size(0),
                                     .num_heads = query.size(1),
                                     .num_kv_heads = key.size(1),
                                     .head_dim = query.size(2),
                                     .value_dim = value.size(2),
                                     .window = rule.window.value_or(0),
                                     .scale = static_cast<float>(rule.scale.value_or(
                                         1 / std::sqrt(static_cast<double>(query.size(2))))),
                                     .softcap = static_cast<float>(rule.softcap),
                                     .num_threads = at::get_num_threads()};
  auto* to = static_cast<std::uint16_t*>(output.mutable_data_ptr());
  parallel_chunks(causal_attention_tasks(params), /*chunk=*/1,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t task = begin; task < end; ++task) {
                      causal_attention_task(params, task, to);
                    }
                  });
  return output;
}

}  // namespace kvc
