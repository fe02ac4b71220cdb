#include "runtime/kernels/query_quads.h"

#include <algorithm>
#include <cmath>

namespace kvc {

QuadHeads::QuadHeads(const DecodeAttentionParams& params)
    : heads_per_kv(params.num_heads / params.num_kv_heads),
      per_kv_head((heads_per_kv + kQuad - 1) / kQuad),
      count(params.num_kv_heads * per_kv_head) {}

std::int64_t QuadHeads::head(std::int64_t quad, std::int64_t lane) const {
  const std::int64_t in_kv_head = quad % per_kv_head * kQuad + lane;
  return in_kv_head < heads_per_kv ? kv_head(quad) * heads_per_kv + in_kv_head : -1;
}

QuadQueries::QuadQueries(const DecodeAttentionParams& params, std::int64_t width,
                         const ChannelOrder& order, const float* factors)
    : width_(width) {
  const QuadHeads heads(params);
  memory_.resize(static_cast<std::size_t>(heads.count * kQuad * width));
  for (std::int64_t row = 0; row < heads.count * kQuad; ++row) {
    const std::int64_t quad = row / kQuad, head = heads.head(quad, row % kQuad);
    for (std::int64_t i = 0; head >= 0 && i < params.head_dim; ++i) {
      const float factor =
          factors == nullptr ? 1.0f : factors[heads.kv_head(quad) * params.head_dim + i];
      memory_[static_cast<std::size_t>(row * width + order[static_cast<std::size_t>(i)])] =
          params.query[head * params.head_dim + i] * params.scale * factor;
    }
  }
}

QuadOutputs::QuadOutputs(const DecodeAttentionParams& params, std::int64_t width)
    : heads_(params),
      width_(width),
      memory_(static_cast<std::size_t>(heads_.count * kQuad * width)) {}

void QuadOutputs::add_to(float* output, const ChannelOrder& order, const float* factors) const {
  const auto channels = static_cast<std::int64_t>(order.size());
  for (std::int64_t row = 0; row < heads_.count * kQuad; ++row) {
    const std::int64_t quad = row / kQuad, head = heads_.head(quad, row % kQuad);
    for (std::int64_t i = 0; head >= 0 && i < channels; ++i) {
      const float factor = factors == nullptr ? 1.0f : factors[heads_.kv_head(quad) * channels + i];
      output[head * channels + i] +=
          factor *
          memory_[static_cast<std::size_t>(row * width_ + order[static_cast<std::size_t>(i)])];
    }
  }
}

QuadSoftmaxes::QuadSoftmaxes(const DecodeAttentionParams& params) : heads_(params) {
  quads_.assign(static_cast<std::size_t>(heads_.count),
                {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {}});
}

void QuadSoftmaxes::begin(const AttentionPartial& partial, std::int64_t width) const {
  for (std::int64_t row = 0; row < heads_.count * kQuad; ++row) {
    const std::int64_t quad = row / kQuad, head = heads_.head(quad, row % kQuad);
    if (head >= 0) {
      partial.max[head] = quads_[static_cast<std::size_t>(quad)].max[row % kQuad];
      partial.sum[head] = quads_[static_cast<std::size_t>(quad)].sum[row % kQuad];
      std::fill_n(partial.output + head * width, width, 0.0f);
    }
  }
}

}  // namespace kvc
