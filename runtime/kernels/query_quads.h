// The query heads of one token in fours, each with its running softmax.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/decode_attention.h"

namespace kvc {

inline constexpr std::int64_t kQuad = 4;  // query heads that share one pass over keys and values

// Up to four query heads of one KV head, the missing ones zero.
struct Quad {
  const float* query;  // [kQuad, width] scaled
  float* output;       // [kQuad, width] sums of exp(score - max) * value
  float max[kQuad];
  float sum[kQuad];
};

// Place in a kernel's order of every channel of a head. [head_dim]
using ChannelOrder = std::vector<std::int32_t>;

class QueryQuads {
 public:
  // `width`: head_dim and zeros up to a whole number of vectors.
  QueryQuads(const DecodeAttentionParams& params, std::int64_t width,
             const ChannelOrder& key_order);

  std::int64_t size() const { return static_cast<std::int64_t>(quads_.size()); }
  std::int64_t kv_head(std::int64_t quad) const { return quad / per_kv_head_; }
  std::int64_t per_kv_head() const { return per_kv_head_; }
  Quad& operator[](std::int64_t quad) { return quads_[static_cast<std::size_t>(quad)]; }

  void collect(const DecodeAttentionParams& params, const ChannelOrder& value_order,
               const AttentionPartial& partial) const;

 private:
  std::int64_t width_, per_kv_head_;
  std::vector<float> queries_, outputs_;  // [quads, kQuad, width]
  std::vector<Quad> quads_;               // [num_kv_heads, per_kv_head]
};

}  // namespace kvc
