// Attention of one token over the rows of a KV store, on the CPU. Does not use torch.
//
// A sequence's rows are in segments, each of one storage type. A range of a segment's rows gives a
// partial softmax; combine_partials joins partials, in any order.
#pragma once

#include <cstdint>

#include "runtime/kernels/kv_rows.h"

namespace kvc {

// Angles of the rotary pairs. Position p's angles are p times position 1's, and one factor
// multiplies all cos and sin (position 0 has it): kernels rotate a run of rows by the angles of its
// first position and of small distances.
struct RopeAngles {
  const float* cos = nullptr;  // [num_positions, num_pairs]
  const float* sin = nullptr;  // likewise
  std::int64_t num_pairs = 0;  // channels from 2 num_pairs on stay as they are; 0: all do
  bool interleaved = false;    // pairs (2i, 2i+1), otherwise (i, i + num_pairs)
};

// Converts a raw key to attention's form: bias, RMS norm over each head (both optional), then RoPE.
struct RawKeys {
  RopeAngles rope{};
  const float* bias = nullptr;  // [num_kv_heads, head_dim], or null
  const float* norm = nullptr;  // [head_dim] factors of the normalised key, or null
  float norm_epsilon = 0;
};

// Some cached tokens of one layer.
struct KvSegment {
  KvRows key{};                             // rows of num_kv_heads * head_dim
  KvRows value{};                           // of num_kv_heads * value_channels(), as many
  const std::int32_t* positions = nullptr;  // [num_rows]; null: first_position + row
  std::int64_t first_position = 0;
  bool raw_key = false;         // keys before norm and RoPE
  const float* bias = nullptr;  // [num_rows, num_kv_heads] finite, added to scores; null: nothing
};

// One token's query heads. Query head h reads KV head h / (num_heads / num_kv_heads).
struct DecodeAttentionParams {
  const float* query = nullptr;  // [num_heads, head_dim] post-RoPE
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;  // channels of a value; 0: head_dim
  float scale = 1;             // of the scores
  float softcap = 0;           // s: scores x, once scaled, become s tanh(x / s); 0: none
  RawKeys raw_keys{};          // for segments that hold such

  std::int64_t value_channels() const { return value_dim == 0 ? head_dim : value_dim; }
};

// Scores of rows by fours of query heads of one KV head (query_quads.h), [quads, rows, 4]; lanes without a head are
// undefined.
struct QuadScores {
  float* numbers = nullptr;
  std::int64_t stride = 0;  // numbers from one quad to the next
};

// Partial softmax of some tokens.
struct AttentionPartial {
  float* max = nullptr;     // [num_heads] largest score
  float* sum = nullptr;     // [num_heads] sum of exp(score - max)
  float* output = nullptr;  // [num_heads, value_channels()] sum of exp(score - max) * value
  QuadScores
      scores{};  // of the segment's rows: those that are attended to get theirs. Null: not wanted
};

// The specification: softmax(cap(scale * query keyᵀ) + bias) value of a segment's rows first .. last - 1
// (at least one), summed in float64.
void decode_attention_partial_reference(const DecodeAttentionParams& params,
                                        const KvSegment& segment, std::int64_t first,
                                        std::int64_t last, const AttentionPartial& partial);

// The same, vectorised, with float32 sums. With AVX-512 BF16, queries have 17 bits in products with bfloat16 keys
// (exact for a bfloat16 model), and the weights exp(score - max) of bfloat16 values are rounded to bfloat16 and summed
// so: an output is off by at most 2^-9 of the values' mean distance from it; rounding the values costs up to 2^-9 of
// their mean size. With AVX-512, integer codes are multiplied with queries and weights of 14 bits or more.
void decode_attention_partial(const DecodeAttentionParams& params, const KvSegment& segment,
                              std::int64_t first, std::int64_t last,
                              const AttentionPartial& partial);

// Combines `count` partials of `num_heads` heads. output: [num_heads, head_dim]; log_sum, unless null:
// [num_heads] log of the sum of exp(score).
void combine_partials(const AttentionPartial* partials, std::int64_t count, std::int64_t num_heads,
                      std::int64_t head_dim, float* output, float* log_sum = nullptr);
// The same for heads first .. last - 1.
void combine_heads(const AttentionPartial* partials, std::int64_t count, std::int64_t first,
                   std::int64_t last, std::int64_t head_dim, float* output, float* log_sum);
// `to` becomes the softmax of the tokens of both. Only `to` may have none: max -infinity, the rest
// zero.
void add_partial(const AttentionPartial& partial, std::int64_t num_heads, std::int64_t head_dim,
                 const AttentionPartial& to);

// All rows of all segments, through the reference. output: [num_heads, head_dim].
void decode_attention_reference(const DecodeAttentionParams& params, const KvSegment* segments,
                                std::int64_t count, float* output);

// What a token's query heads score with keys, without attending, to choose among them:
// scores [segment's rows, num_heads]: rows first .. last - 1 get cap(scale * query key), of keys in
// attention's form. Does not read the segment's values and bias.
void key_scores_reference(const DecodeAttentionParams& params, const KvSegment& segment,
                          std::int64_t first, std::int64_t last, float* scores);
void key_scores(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
                std::int64_t last, float* scores);

}  // namespace kvc
