// Averages of merged tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/store/block_list.h"

namespace kvc {

// Averages of merged tokens: float32, in one block that is allocated when the first token merges.
class ResidualSlots {
 public:
  ResidualSlots(std::shared_ptr<KvPool> pool, std::int64_t num_slots, std::int64_t num_kv_heads,
                std::int64_t key_width, std::int64_t value_width);

  bool empty() const { return block_.size() == 0; }
  std::int64_t num_slots() const { return num_slots_; }
  std::int64_t num_kv_heads() const { return num_kv_heads_; }
  std::int64_t key_width() const { return key_width_; }
  std::int64_t bytes() const { return block_.bytes(); }

  // Averages the slot with `count` tokens that have this mean. key [key_width], value [value_width] float32.
  void add(std::int64_t slot, std::int64_t kv_head, const float* key, const float* value,
           float count);

  // Merges a single token into the slot that merge_token would choose.
  void merge(std::int64_t kv_head, const float* key, const float* value);

  const float* key() const { return numbers(0); }  // [num_slots, num_kv_heads, key_width]
  const float* value() const { return numbers(rows() * key_width_); }  // likewise
  const float* count() const {
    return numbers(rows() * (key_width_ + value_width_));
  }  // [num_slots, num_kv_heads]

 private:
  std::int64_t rows() const { return num_slots_ * num_kv_heads_; }
  const float* numbers(std::int64_t first) const;
  float* writable();

  std::int64_t num_slots_, num_kv_heads_, key_width_, value_width_;
  BlockList block_;
};

// One KV head's key and value of a token that leaves a layer.
struct LeavingToken {
  ResidualSlots* slots;
  std::int64_t kv_head;
  const float *key, *value;
};
// Merges a token that leaves several layers and heads, which merge the same tokens, into their slot of the same
// number: the first free one, or the one with the most similar keys, by products summed over layers and heads.
void merge_token(const std::vector<LeavingToken>& token);

}  // namespace kvc
