// The query heads of one token in fours, each with its running softmax.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/decode_attention.h"

namespace kvc {

inline constexpr std::int64_t kQuad = 4;  // query heads that share one pass over keys and values

// Index of every channel of a head in a kernel's order. [head_dim]
using ChannelOrder = std::vector<std::int32_t>;

// The running softmax of four scores.
struct QuadSoftmax {
  float max[kQuad];
  float sum[kQuad];
};

// Groups of four query heads of one KV head, missing ones zero.
struct QuadHeads {
  explicit QuadHeads(const DecodeAttentionParams& params)
      : QuadHeads(params.num_heads, params.num_kv_heads) {}
  QuadHeads(std::int64_t num_heads, std::int64_t num_kv_heads);
  std::int64_t heads_per_kv, per_kv_head, count;
  std::int64_t kv_head(std::int64_t quad) const { return quad / per_kv_head; }
  // -1: missing.
  std::int64_t head(std::int64_t quad, std::int64_t lane) const;
  // Index of a head's score of a row in QuadScores.
  std::int64_t place(std::int64_t head, std::int64_t row, std::int64_t stride) const;
  // Number of scores for `num_rows` rows.
  std::int64_t num_scores(std::int64_t num_rows) const { return count * kQuad * num_rows; }
};

// Copies scores [count, kQuad] of a quad with rows from `row` on to to[rows, num_heads], unless
// null.
void keep_scores(const QuadHeads& heads, std::int64_t num_heads, std::int64_t quad,
                 std::int64_t row, std::int64_t count, const float* scores, float* to);

// Scaled queries. [quads, kQuad, width] with zeros from head_dim on
class QuadQueries {
 public:
  // factors [num_kv_heads, head_dim] multiply the queries; null: ones.
  QuadQueries(const DecodeAttentionParams& params, std::int64_t width, const ChannelOrder& order,
              const float* factors = nullptr);
  const float* operator[](std::int64_t quad) const {
    return memory_.data() + quad * kQuad * width_;
  }

 private:
  std::int64_t width_;
  AlignedVector<float> memory_;
};

class QuadSoftmaxes;

// Sums of exp(score - max) * value. [quads, kQuad, width]
class QuadOutputs {
 public:
  QuadOutputs(const DecodeAttentionParams& params, std::int64_t width);
  float* operator[](std::int64_t quad) { return memory_.data() + quad * kQuad * width_; }
  // output[num_heads, order.size()] += sums, times factors [num_kv_heads, order.size()] unless null.
  void add_to(float* output, const ChannelOrder& order, const float* factors = nullptr) const;
  // Adds these tokens to a partial, which may have none yet (max -infinity, the rest zero).
  void join(const QuadSoftmaxes& softmaxes, const ChannelOrder& order,
            const AttentionPartial& partial) const;

 private:
  QuadHeads heads_;
  std::int64_t width_;
  AlignedVector<float> memory_;
};

class QuadSoftmaxes {
 public:
  explicit QuadSoftmaxes(const DecodeAttentionParams& params);
  QuadSoftmax& operator[](std::int64_t quad) { return quads_[static_cast<std::size_t>(quad)]; }
  const QuadSoftmax& operator[](std::int64_t quad) const {
    return quads_[static_cast<std::size_t>(quad)];
  }
  // Writes max and sum, and zeros [num_heads, width] of the output.
  void begin(const AttentionPartial& partial, std::int64_t width) const;

 private:
  QuadHeads heads_;
  std::vector<QuadSoftmax> quads_;
};

}  // namespace kvc
