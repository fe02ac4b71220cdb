// One KV head's rows of a cache with a budget: tokens that change places, or become part of a residual slot. All threads of
// a block call what takes a thread.
#pragma once

#include "runtime/kernels/cuda/budget_places.h"
#include "runtime/kernels/cuda/device_numbers.h"

namespace kvc {

struct BudgetRows {
  BudgetCache cache;
  int kv_head = 0, head_dim = 0;

  KVC_DEVICE std::int64_t row_index(int row) const {
    return static_cast<std::int64_t>(kv_head) * cache.capacity + row;
  }
  KVC_DEVICE std::int64_t slot_index(int slot) const {
    return static_cast<std::int64_t>(kv_head) * cache.layout.num_residual + slot;
  }
  KVC_DEVICE float& score(int row) const { return cache.scores[row_index(row)]; }
  KVC_DEVICE std::int32_t& position(int row) const { return cache.positions[row_index(row)]; }
  KVC_DEVICE float& count(int slot) const { return cache.counts[slot_index(slot)]; }
  template <class T>
  KVC_DEVICE T* key(int row) const {
    return static_cast<T*>(cache.keys) + row_index(row) * head_dim;
  }
  template <class T>
  KVC_DEVICE T* value(int row) const {
    return static_cast<T*>(cache.values) + row_index(row) * head_dim;
  }

  template <class T, class Thread>
  KVC_DEVICE void store(int row, const T* new_key, const T* new_value, Thread& thread) const {
    for (int channel = thread.index(); channel < head_dim; channel += thread.count()) {
      key<T>(row)[channel] = new_key[channel];
      value<T>(row)[channel] = new_value[channel];
    }
    thread.sync();
  }

  template <class T, class Thread>
  KVC_DEVICE void move(int from, int to, Thread& thread) const {
    if (thread.index() == 0) {
      score(to) = score(from);
      position(to) = position(from);
    }
    store(to, key<T>(from), value<T>(from), thread);
  }

  // The product of a slot's key with another: the same in all lanes of a warp.
  template <class T, class Thread>
  KVC_DEVICE float likeness(int slot, const T* other, Thread& thread) const {
    const float* of_slot = cache.residual_keys + slot_index(slot) * head_dim;
    float sum = 0;
    for (int channel = thread.lane(); channel < head_dim; channel += 32) {
      sum += of_slot[channel] * to_float(other[channel]);
    }
    for (int lanes = 16; lanes >= 1; lanes /= 2) {
      sum += thread.shuffle_xor(sum, lanes);
    }
    return sum;
  }

  template <class T, class Thread>
  KVC_DEVICE void merge(int row, int slot, Thread& thread) const {
    const float members = count(slot);
    thread.sync();
    float* slot_key = cache.residual_keys + slot_index(slot) * head_dim;
    float* slot_value = cache.residual_values + slot_index(slot) * head_dim;
    for (int channel = thread.index(); channel < head_dim; channel += thread.count()) {
      slot_key[channel] = merged_number(slot_key[channel], members, to_float(key<T>(row)[channel]));
      slot_value[channel] =
          merged_number(slot_value[channel], members, to_float(value<T>(row)[channel]));
    }
    if (thread.index() == 0) {
      count(slot) = members + 1;
    }
    thread.sync();
  }
};

}  // namespace kvc
