#include "runtime/decode.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "model/parallel.h"
#include "runtime/kernels/decode_attention.h"

namespace kvc {
namespace {

constexpr std::int64_t kElementsPerThread = std::int64_t{1}
                                            << 15;  // below, threads cost more than they save

KvElement element_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return KvElement::kFloat32;
    case at::kBFloat16:
      return KvElement::kBFloat16;
    case at::kHalf:
      return KvElement::kFloat16;
    default:
      fail("decode attention: no kernel for {}", c10::toString(type));
  }
}

// Memory for `count` partials of all heads.
struct Partials {
  Partials(std::int64_t count, std::int64_t num_heads, std::int64_t head_dim)
      : values(static_cast<std::size_t>(count * num_heads * (head_dim + 2))) {
    float* next = values.data();
    for (std::int64_t i = 0; i < count; ++i) {
      partials.push_back({next, next + num_heads, next + 2 * num_heads});
      next += num_heads * (head_dim + 2);
    }
  }
  std::vector<float> values;
  std::vector<AttentionPartial> partials;
};

}  // namespace

at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& all_keys,
                            const at::Tensor& all_values, const AttentionRule& rule) {
  const std::int64_t num_tokens = all_keys.size(0);
  const std::int64_t seen = std::min(rule.window.value_or(num_tokens), num_tokens);
  const at::Tensor key = all_keys.narrow(0, num_tokens - seen, seen);
  const at::Tensor value = all_values.narrow(0, num_tokens - seen, seen);
  const at::Tensor queries = query.to(at::kFloat).contiguous();
  const double scale = rule.scale.value_or(1 / std::sqrt(static_cast<double>(key.size(2))));
  const void* key_block = key.const_data_ptr();
  const void* value_block = value.const_data_ptr();
  const KvElement element = element_of(key.scalar_type());
  const KvSegment segment{.key = {&key_block, seen, seen, element},
                          .value = {&value_block, seen, seen, element}};
  const DecodeAttentionParams params{.query = queries.const_data_ptr<float>(),
                                     .num_heads = query.size(0),
                                     .num_kv_heads = key.size(1),
                                     .head_dim = key.size(2),
                                     .scale = static_cast<float>(scale),
                                     .softcap = static_cast<float>(rule.softcap)};
  at::Tensor output = at::empty({params.num_heads * params.head_dim}, at::kFloat);
  const std::int64_t chunks =
      std::clamp<std::int64_t>(key.numel() / kElementsPerThread, 1, at::get_num_threads());
  const std::int64_t per_chunk = (seen + chunks - 1) / chunks;
  Partials work(chunks, params.num_heads, params.head_dim);
  parallel_pieces(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      decode_attention_partial(params, segment, chunk * per_chunk,
                               std::min(seen, (chunk + 1) * per_chunk),
                               work.partials[static_cast<std::size_t>(chunk)]);
    }
  });
  combine_partials(work.partials.data(), chunks, params.num_heads, params.head_dim,
                   output.mutable_data_ptr<float>());
  return output.to(query.scalar_type());
}

}  // namespace kvc
