#include "runtime/store/residual_slots.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace kvc {

ResidualSlots::ResidualSlots(std::shared_ptr<KvPool> pool, std::int64_t num_slots,
                             std::int64_t num_kv_heads, std::int64_t key_width,
                             std::int64_t value_width)
    : num_slots_(num_slots),
      num_kv_heads_(num_kv_heads),
      key_width_(key_width),
      value_width_(value_width),
      block_(std::move(pool), num_slots * num_kv_heads * (key_width + value_width + 1) *
                                  std::int64_t{sizeof(float)}) {}

const float* ResidualSlots::numbers(std::int64_t first) const {
  return reinterpret_cast<const float*>(block_.data(0)) + first;
}

float* ResidualSlots::writable() {
  if (empty()) {
    block_.resize(1);
    auto* first = reinterpret_cast<float*>(block_.writable(0));
    std::fill_n(first, rows() * (key_width_ + value_width_ + 1), 0.0f);
  }
  return reinterpret_cast<float*>(block_.writable(0));
}

void ResidualSlots::add(std::int64_t slot, std::int64_t kv_head, const float* new_key,
                        const float* new_value, float new_count) {
  KVC_CHECK(slot >= 0 && slot < num_slots_, "KV cache: residual slot {} of {}", slot, num_slots_);
  float* base = writable();
  const std::int64_t row = slot * num_kv_heads_ + kv_head;
  float& old_count = base[rows() * (key_width_ + value_width_) + row];
  const float sum = old_count + new_count;
  const float old_share = old_count / sum, new_share = new_count / sum;
  const auto average = [&](float* old_numbers, const float* new_numbers, std::int64_t width) {
    for (std::int64_t channel = 0; channel < width; ++channel) {
      old_numbers[channel] = old_share * old_numbers[channel] + new_share * new_numbers[channel];
    }
  };
  average(base + row * key_width_, new_key, key_width_);
  average(base + rows() * key_width_ + row * value_width_, new_value, value_width_);
  old_count = sum;
}

namespace {

float likeness(const LeavingToken& part, std::int64_t slot) {
  const std::int64_t width = part.slots->key_width();
  const std::int64_t row = slot * part.slots->num_kv_heads() + part.kv_head;
  return std::inner_product(part.key, part.key + width, part.slots->key() + row * width, 0.0f);
}

std::int64_t slot_of(const std::vector<LeavingToken>& token) {
  const ResidualSlots& slots = *token.front().slots;
  std::int64_t best = 0;
  float largest = 0;
  for (std::int64_t slot = 0; slot < slots.num_slots() && !slots.empty(); ++slot) {
    if (slots.count()[slot * slots.num_kv_heads() + token.front().kv_head] == 0) {
      return slot;
    }
    float sum = 0;
    for (const LeavingToken& part : token) {
      sum += likeness(part, slot);
    }
    if (slot == 0 || sum > largest) {
      largest = sum;
      best = slot;
    }
  }
  return best;
}

}  // namespace

void ResidualSlots::merge(std::int64_t kv_head, const float* new_key, const float* new_value) {
  merge_token({{this, kv_head, new_key, new_value}});
}

void merge_token(const std::vector<LeavingToken>& token) {
  const std::int64_t slot = slot_of(token);
  for (const LeavingToken& part : token) {
    part.slots->add(slot, part.kv_head, part.key, part.value, 1);
  }
}

}  // namespace kvc
