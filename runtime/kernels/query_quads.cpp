#include "runtime/kernels/query_quads.h"

#include <cmath>

namespace kvc {

QueryQuads::QueryQuads(const DecodeAttentionParams& params, std::int64_t width,
                       const ChannelOrder& key_order)
    : width_(width) {
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  per_kv_head_ = (heads_per_kv + kQuad - 1) / kQuad;
  const std::int64_t count = params.num_kv_heads * per_kv_head_;
  queries_.resize(static_cast<std::size_t>(count * kQuad * width));
  outputs_.resize(queries_.size());
  for (std::int64_t quad = 0; quad < count; ++quad) {
    float* queries = queries_.data() + quad * kQuad * width;
    const std::int64_t first = quad % per_kv_head_ * kQuad;  // among the KV head's heads
    for (std::int64_t lane = 0; lane < kQuad && first + lane < heads_per_kv; ++lane) {
      const std::int64_t head = quad / per_kv_head_ * heads_per_kv + first + lane;
      for (std::int64_t channel = 0; channel < params.head_dim; ++channel) {
        queries[lane * width + key_order[static_cast<std::size_t>(channel)]] =
            params.query[head * params.head_dim + channel] * params.scale;
      }
    }
    quads_.push_back({queries,
                      outputs_.data() + quad * kQuad * width,
                      {-INFINITY, -INFINITY, -INFINITY, -INFINITY},
                      {}});
  }
}

void QueryQuads::collect(const DecodeAttentionParams& params, const ChannelOrder& value_order,
                         const AttentionPartial& partial) const {
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  for (std::int64_t head = 0; head < params.num_heads; ++head) {
    const std::int64_t index = head % heads_per_kv, lane = index % kQuad;
    const Quad& quad =
        quads_[static_cast<std::size_t>(head / heads_per_kv * per_kv_head_ + index / kQuad)];
    partial.max[head] = quad.max[lane];
    partial.sum[head] = quad.sum[lane];
    for (std::int64_t channel = 0; channel < params.head_dim; ++channel) {
      partial.output[head * params.head_dim + channel] =
          quad.output[lane * width_ + value_order[static_cast<std::size_t>(channel)]];
    }
  }
}

}  // namespace kvc
