#include "runtime/kernels/reference_rows.h"

#include <algorithm>
#include <cmath>

#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/query_quads.h"

namespace kvc {
namespace {

void normalise(const RawKeys& keys, ReferenceRow& key) {
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

}  // namespace

void rotate_reference(const RopeAngles& rope, std::int64_t position, ReferenceRow& key) {
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

namespace {

// keys, values: of rows first .. last - 1 of one KV head, which the query head reads.
void attend_head(const DecodeAttentionParams& params, const std::vector<ReferenceRow>& keys,
                 const std::vector<ReferenceRow>& values, std::int64_t head, std::int64_t kv_head,
                 std::int64_t first, std::int64_t last, const AttentionPartial& partial,
                 const float* bias) {
  std::vector<double> scores;
  double largest = -INFINITY;
  for (std::int64_t row = first; row < last; ++row) {
    const ReferenceRow& key = keys[static_cast<std::size_t>(row - first)];
    double score = 0;
    for (std::size_t channel = 0; channel < key.size(); ++channel) {
      score +=
          params.query[head * params.head_dim + static_cast<std::int64_t>(channel)] * key[channel];
    }
    score *= params.scale;
    score = params.softcap == 0 ? score : params.softcap * std::tanh(score / params.softcap);
    score += bias == nullptr ? 0.0f : bias[row * params.num_kv_heads + kv_head];
    scores.push_back(score);
    if (partial.scores.numbers != nullptr) {
      partial.scores.numbers[QuadHeads(params).place(head, row, partial.scores.stride)] =
          static_cast<float>(score);
    }
    largest = std::max(largest, scores.back());
  }
  double sum = 0;
  ReferenceRow output;
  for (std::int64_t row = first; row < last; ++row) {
    const double weight = std::exp(scores[static_cast<std::size_t>(row - first)] - largest);
    const ReferenceRow& value = values[static_cast<std::size_t>(row - first)];
    sum += weight;
    output.resize(value.size());
    for (std::size_t channel = 0; channel < value.size(); ++channel) {
      output[channel] += weight * value[channel];
    }
  }
  partial.max[head] = static_cast<float>(largest);
  partial.sum[head] = static_cast<float>(sum);
  std::transform(output.begin(), output.end(),
                 partial.output + head * static_cast<std::int64_t>(output.size()),
                 [](double x) { return static_cast<float>(x); });
}

}  // namespace

ReferenceRow reference_row(const KvRows& rows, std::int64_t width, std::int64_t head_dim,
                           std::int64_t row, std::int64_t first_channel, std::int64_t count) {
  ReferenceRow numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    numbers.push_back(kv_element(rows, width, head_dim, row, first_channel + i));
  }
  return numbers;
}

ReferenceRow reference_key(const DecodeAttentionParams& params, const KvSegment& segment,
                           std::int64_t row, std::int64_t kv_head) {
  const RawKeys& raw = params.raw_keys;
  ReferenceRow key =
      reference_row(segment.key, params.num_kv_heads * params.head_dim, params.head_dim, row,
                    kv_head * params.head_dim, params.head_dim);
  if (!segment.raw_key) {
    return key;
  }
  for (std::size_t channel = 0; raw.bias != nullptr && channel < key.size(); ++channel) {
    key[channel] += raw.bias[kv_head * params.head_dim + static_cast<std::int64_t>(channel)];
  }
  if (raw.norm != nullptr) {
    normalise(raw, key);
  }
  rotate_reference(
      raw.rope,
      segment.positions != nullptr ? segment.positions[row] : segment.first_position + row, key);
  return key;
}

void reference_attention(const DecodeAttentionParams& params, const ReferenceReader& key,
                         const ReferenceReader& value, std::int64_t first, std::int64_t last,
                         const AttentionPartial& partial, const float* bias) {
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  for (std::int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
    std::vector<ReferenceRow> keys, values;  // read once for all query heads
    for (std::int64_t row = first; row < last; ++row) {
      keys.push_back(key(row, kv_head));
      values.push_back(value(row, kv_head));
    }
    for (std::int64_t i = 0; i < heads_per_kv; ++i) {
      attend_head(params, keys, values, kv_head * heads_per_kv + i, kv_head, first, last, partial,
                  bias);
    }
  }
}

}  // namespace kvc
