#include "runtime/kernels/query_quads.h"

#include <algorithm>
#include <cmath>

namespace kvc {

QuadHeads::QuadHeads(std::int64_t num_heads, std::int64_t num_kv_heads)
    : heads_per_kv(num_heads / num_kv_heads),
      per_kv_head((heads_per_kv + kQuad - 1) / kQuad),
      count(num_kv_heads * per_kv_head) {}

std::int64_t QuadHeads::place(std::int64_t head, std::int64_t row, std::int64_t stride) const {
  const std::int64_t in_kv_head = head % heads_per_kv;
  const std::int64_t quad = head / heads_per_kv * per_kv_head + in_kv_head / kQuad;
  return quad * stride + row * kQuad + in_kv_head % kQuad;
}

std::int64_t QuadHeads::head(std::int64_t quad, std::int64_t lane) const {
  const std::int64_t in_kv_head = quad % per_kv_head * kQuad + lane;
  return in_kv_head < heads_per_kv ? kv_head(quad) * heads_per_kv + in_kv_head : -1;
}

void keep_scores(const QuadHeads& heads, std::int64_t num_heads, std::int64_t quad,
                 std::int64_t row, std::int64_t count, const float* scores, float* to) {
  for (std::int64_t lane = 0; to != nullptr && lane < kQuad; ++lane) {
    const std::int64_t head = heads.head(quad, lane);
    for (std::int64_t i = 0; head >= 0 && i < count; ++i) {
      to[(row + i) * num_heads + head] = scores[i * kQuad + lane];
    }
  }
}

QuadQueries::QuadQueries(const DecodeAttentionParams& params, std::int64_t width,
                         const ChannelOrder& order, const float* factors)
    : width_(width) {
  const QuadHeads heads(params);
  const std::int32_t* places = order.data();
  memory_.resize(static_cast<std::size_t>(heads.count * kQuad * width));
  for (std::int64_t row = 0; row < heads.count * kQuad; ++row) {
    const std::int64_t quad = row / kQuad, head = heads.head(quad, row % kQuad);
    if (head < 0) {
      continue;
    }
    const float* from = params.query + head * params.head_dim;
    const float* factor =
        factors == nullptr ? nullptr : factors + heads.kv_head(quad) * params.head_dim;
    float* to = memory_.data() + row * width;
    for (std::int64_t i = 0; i < params.head_dim; ++i) {
      to[places[i]] = from[i] * params.scale * (factor == nullptr ? 1.0f : factor[i]);
    }
  }
}

QuadOutputs::QuadOutputs(const DecodeAttentionParams& params, std::int64_t width)
    : heads_(params),
      width_(width),
      memory_(static_cast<std::size_t>(heads_.count * kQuad * width)) {}

void QuadOutputs::add_to(float* output, const ChannelOrder& order, const float* factors) const {
  const auto channels = static_cast<std::int64_t>(order.size());
  const std::int32_t* places = order.data();
  const bool in_order = std::is_sorted(order.begin(), order.end());
  for (std::int64_t row = 0; row < heads_.count * kQuad; ++row) {
    const std::int64_t quad = row / kQuad, head = heads_.head(quad, row % kQuad);
    if (head < 0) {
      continue;
    }
    const float* from = memory_.data() + row * width_;
    const float* factor = factors == nullptr ? nullptr : factors + heads_.kv_head(quad) * channels;
    float* to = output + head * channels;
    for (std::int64_t i = 0; i < channels; ++i) {
      const float sum = from[in_order ? i : places[i]];
      to[i] += factor == nullptr ? sum : factor[i] * sum;
    }
  }
}

namespace {

// Fours of neighbouring channels stay together.
bool is_in_fours(const ChannelOrder& order) {
  const std::size_t count = order.size() / 4 * 4;
  for (std::size_t i = 0; i < count; ++i) {
    if (order[i] != order[i / 4 * 4] + static_cast<std::int32_t>(i % 4)) {
      return false;
    }
  }
  return true;
}

// to[i] = before * to[i] + weight * from[places[i]]
void join_row(const float* from, const ChannelOrder& order, bool in_fours, float before,
              float weight, float* to) {
  const std::int32_t* places = order.data();
  const auto count = static_cast<std::int64_t>(order.size());
  std::int64_t i = 0;
  for (; in_fours && i + 4 <= count; i += 4) {
    const float* four = from + places[i];
    for (int lane = 0; lane < 4; ++lane) {
      to[i + lane] = before * to[i + lane] + weight * four[lane];
    }
  }
  for (; i < count; ++i) {
    to[i] = before * to[i] + weight * from[places[i]];
  }
}

}  // namespace

void QuadOutputs::join(const QuadSoftmaxes& softmaxes, const ChannelOrder& order,
                       const AttentionPartial& partial) const {
  const bool in_fours = is_in_fours(order);
  const auto channels = static_cast<std::int64_t>(order.size());
  for (std::int64_t row = 0; row < heads_.count * kQuad; ++row) {
    const std::int64_t quad = row / kQuad, lane = row % kQuad, head = heads_.head(quad, lane);
    if (head < 0) {
      continue;
    }
    const float max = softmaxes[quad].max[lane], largest = std::max(partial.max[head], max);
    const float before = std::exp(partial.max[head] - largest), weight = std::exp(max - largest);
    partial.max[head] = largest;
    partial.sum[head] = before * partial.sum[head] + weight * softmaxes[quad].sum[lane];
    join_row(memory_.data() + row * width_, order, in_fours, before, weight,
             partial.output + head * channels);
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
