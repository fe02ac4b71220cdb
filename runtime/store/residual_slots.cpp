#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "runtime/store/kept_rows.h"

namespace kvc {

ResidualSlots::ResidualSlots(std::shared_ptr<KvPool> pool, std::int64_t num_slots,
                             std::int64_t num_kv_heads, std::int64_t head_dim)
    : num_slots_(num_slots),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      block_(std::move(pool),
             num_slots * num_kv_heads * (2 * head_dim + 1) * std::int64_t{sizeof(float)}) {}

const float* ResidualSlots::numbers(std::int64_t first) const {
  return reinterpret_cast<const float*>(block_.data(0)) + first;
}

float* ResidualSlots::writable() {
  if (empty()) {
    block_.resize(1);
    auto* first = reinterpret_cast<float*>(block_.writable(0));
    std::fill_n(first, num_slots_ * num_kv_heads_ * (2 * head_dim_ + 1), 0.0f);
  }
  return reinterpret_cast<float*>(block_.writable(0));
}

void ResidualSlots::add(std::int64_t slot, std::int64_t kv_head, const float* new_key,
                        const float* new_value, float new_count) {
  KVC_CHECK(slot >= 0 && slot < num_slots_, "KV cache: residual slot {} of {}", slot, num_slots_);
  float* base = writable();
  const std::int64_t row = slot * num_kv_heads_ + kv_head;
  float& old_count = base[2 * num_slots_ * width() + row];
  const float sum = old_count + new_count;
  const float old_share = old_count / sum, new_share = new_count / sum;
  float* old_key = base + row * head_dim_;
  float* old_value = old_key + num_slots_ * width();
  for (std::int64_t channel = 0; channel < head_dim_; ++channel) {
    old_key[channel] = old_share * old_key[channel] + new_share * new_key[channel];
    old_value[channel] = old_share * old_value[channel] + new_share * new_value[channel];
  }
  old_count = sum;
}

void ResidualSlots::merge(std::int64_t kv_head, const float* new_key, const float* new_value) {
  std::int64_t best = 0;
  float largest = 0;
  for (std::int64_t slot = 0; slot < num_slots_ && !empty(); ++slot) {
    const std::int64_t row = slot * num_kv_heads_ + kv_head;
    if (count()[row] == 0) {
      best = slot;
      break;
    }
    const float* of_slot = key() + row * head_dim_;
    const float likeness = std::inner_product(new_key, new_key + head_dim_, of_slot, 0.0f);
    if (slot == 0 || likeness > largest) {
      largest = likeness;
      best = slot;
    }
  }
  add(best, kv_head, new_key, new_value, 1);
}

}  // namespace kvc
