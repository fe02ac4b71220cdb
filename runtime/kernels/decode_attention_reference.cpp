#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/element.h"

namespace kvc {
namespace {

struct HeadSoftmax {
  double max = -INFINITY;
  double sum = 0;
  std::vector<double> output;  // [head_dim]
};

HeadSoftmax attend_head(const DecodeAttentionParams& params, std::int64_t head, std::int64_t first,
                        std::int64_t last) {
  const std::int64_t kv_head = head / (params.num_heads / params.num_kv_heads);
  const auto offset = [&](std::int64_t token) {
    return (token * params.num_kv_heads + kv_head) * params.head_dim;
  };
  HeadSoftmax softmax{.output = std::vector<double>(static_cast<std::size_t>(params.head_dim))};
  std::vector<double> scores;
  for (std::int64_t token = first; token < last; ++token) {
    double score = 0;
    for (std::int64_t channel = 0; channel < params.head_dim; ++channel) {
      score += static_cast<double>(params.query[head * params.head_dim + channel]) *
               load_element(params.key, offset(token) + channel, params.element);
    }
    score *= params.scale;
    scores.push_back(params.softcap == 0 ? score
                                         : params.softcap * std::tanh(score / params.softcap));
    softmax.max = std::max(softmax.max, scores.back());
  }
  for (std::int64_t token = first; token < last; ++token) {
    const double weight = std::exp(scores[static_cast<std::size_t>(token - first)] - softmax.max);
    softmax.sum += weight;
    for (std::int64_t channel = 0; channel < params.head_dim; ++channel) {
      softmax.output[static_cast<std::size_t>(channel)] +=
          weight * load_element(params.value, offset(token) + channel, params.element);
    }
  }
  return softmax;
}

}  // namespace

void decode_attention_partial_reference(const DecodeAttentionParams& params, std::int64_t first,
                                        std::int64_t last, const AttentionPartial& partial) {
  for (std::int64_t head = 0; head < params.num_heads; ++head) {
    const HeadSoftmax softmax = attend_head(params, head, first, last);
    partial.max[head] = static_cast<float>(softmax.max);
    partial.sum[head] = static_cast<float>(softmax.sum);
    for (std::int64_t channel = 0; channel < params.head_dim; ++channel) {
      partial.output[head * params.head_dim + channel] =
          static_cast<float>(softmax.output[static_cast<std::size_t>(channel)]);
    }
  }
}

void decode_attention_reference(const DecodeAttentionParams& params, float* output) {
  for (std::int64_t head = 0; head < params.num_heads; ++head) {
    const HeadSoftmax softmax = attend_head(params, head, 0, params.num_tokens);
    for (std::int64_t channel = 0; channel < params.head_dim; ++channel) {
      output[head * params.head_dim + channel] =
          static_cast<float>(softmax.output[static_cast<std::size_t>(channel)] / softmax.sum);
    }
  }
}

}  // namespace kvc
