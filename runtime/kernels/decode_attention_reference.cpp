#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/kv_element.h"

namespace kvc {
namespace {

using Row = std::vector<double>;  // [head_dim]

Row read_head(const DecodeAttentionParams& params, const KvRows& rows, std::int64_t row,
              std::int64_t kv_head) {
  Row head;
  for (std::int64_t channel = 0; channel < params.head_dim; ++channel) {
    head.push_back(kv_element(rows, params.num_kv_heads * params.head_dim, params.head_dim, row,
                              kv_head * params.head_dim + channel));
  }
  return head;
}

void normalise(const RawKeys& keys, Row& key) {
  double squares = 0;
  for (const double x : key) {
    squares += x * x;
  }
  const double factor =
      1 / std::sqrt(squares / static_cast<double>(key.size()) + keys.norm_epsilon);
  for (std::size_t channel = 0; channel < key.size(); ++channel) {
    key[channel] *= factor * keys.norm[channel];
  }
}

void rotate(const RopeAngles& rope, std::int64_t position, Row& key) {
  for (std::int64_t pair = 0; pair < rope.num_pairs; ++pair) {
    const double cos = rope.cos[position * rope.num_pairs + pair];
    const double sin = rope.sin[position * rope.num_pairs + pair];
    double& a = key[static_cast<std::size_t>(rope.interleaved ? 2 * pair : pair)];
    double& b =
        key[static_cast<std::size_t>(rope.interleaved ? 2 * pair + 1 : pair + rope.num_pairs)];
    const double turned = a * cos - b * sin;
    b = b * cos + a * sin;
    a = turned;
  }
}

Row read_key(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t row,
             std::int64_t kv_head) {
  Row key = read_head(params, segment.key, row, kv_head);
  if (segment.raw_key) {
    if (params.raw_keys.norm != nullptr) {
      normalise(params.raw_keys, key);
    }
    rotate(params.raw_keys.rope,
           segment.positions != nullptr ? segment.positions[row] : segment.first_position + row,
           key);
  }
  return key;
}

void attend_head(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t head,
                 std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  const std::int64_t kv_head = head / (params.num_heads / params.num_kv_heads);
  std::vector<double> scores;
  double largest = -INFINITY;
  for (std::int64_t row = first; row < last; ++row) {
    const Row key = read_key(params, segment, row, kv_head);
    double score = 0;
    for (std::size_t channel = 0; channel < key.size(); ++channel) {
      score +=
          params.query[head * params.head_dim + static_cast<std::int64_t>(channel)] * key[channel];
    }
    score *= params.scale;
    scores.push_back(params.softcap == 0 ? score
                                         : params.softcap * std::tanh(score / params.softcap));
    largest = std::max(largest, scores.back());
  }
  double sum = 0;
  Row output(static_cast<std::size_t>(params.head_dim));
  for (std::int64_t row = first; row < last; ++row) {
    const double weight = std::exp(scores[static_cast<std::size_t>(row - first)] - largest);
    const Row value = read_head(params, segment.value, row, kv_head);
    sum += weight;
    for (std::size_t channel = 0; channel < value.size(); ++channel) {
      output[channel] += weight * value[channel];
    }
  }
  partial.max[head] = static_cast<float>(largest);
  partial.sum[head] = static_cast<float>(sum);
  std::transform(output.begin(), output.end(), partial.output + head * params.head_dim,
                 [](double x) { return static_cast<float>(x); });
}

}  // namespace

void decode_attention_partial_reference(const DecodeAttentionParams& params,
                                        const KvSegment& segment, std::int64_t first,
                                        std::int64_t last, const AttentionPartial& partial) {
  for (std::int64_t head = 0; head < params.num_heads; ++head) {
    attend_head(params, segment, head, first, last, partial);
  }
}

void decode_attention_reference(const DecodeAttentionParams& params, const KvSegment* segments,
                                std::int64_t count, float* output) {
  const std::int64_t size = params.num_heads * (params.head_dim + 2);
  std::vector<float> memory(static_cast<std::size_t>(count * size));
  std::vector<AttentionPartial> partials;
  for (std::int64_t i = 0; i < count; ++i) {
    float* at = memory.data() + i * size;
    partials.push_back({at, at + params.num_heads, at + 2 * params.num_heads});
    decode_attention_partial_reference(params, segments[i], 0, segments[i].key.num_rows,
                                       partials.back());
  }
  combine_partials(partials.data(), count, params.num_heads, params.head_dim, output);
}

}  // namespace kvc
