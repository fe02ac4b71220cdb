// One KV head's rows of a cache with a budget: tokens that change places, or become part of a residual slot. All threads of
// a block call what takes a thread.
#pragma once

#include "runtime/kernels/cuda/budget_places.h"
#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/quantise_rows_kernel.h"

namespace kvc {

struct BudgetRows {
  BudgetCache cache;
  int kv_head = 0, head_dim = 0;
  DeviceElement context = DeviceElement::kBFloat16;

  KVC_DEVICE std::int64_t row_index(int row) const {
    return static_cast<std::int64_t>(kv_head) * cache.capacity + row;
  }
  KVC_DEVICE std::int64_t slot_index(int slot) const {
    return static_cast<std::int64_t>(kv_head) * cache.layout.num_residual + slot;
  }
  KVC_DEVICE float& score(int row) const { return cache.scores[row_index(row)]; }
  KVC_DEVICE std::int32_t& position(int row) const { return cache.positions[row_index(row)]; }
  KVC_DEVICE float& count(int slot) const { return cache.counts[slot_index(slot)]; }
  KVC_DEVICE BudgetPlace place(int row) const { return budget_place(cache, context, kv_head, row); }
  // For an exact row.
  template <class T>
  KVC_DEVICE T* key(int row) const {
    return static_cast<T*>(cache.keys) + place(row).index * head_dim;
  }
  template <class T>
  KVC_DEVICE T* value(int row) const {
    return static_cast<T*>(cache.values) + place(row).index * head_dim;
  }
  // For any row.
  template <class T>
  KVC_DEVICE float number(const void* exact, const std::uint8_t* codes, int row,
                          int channel) const {
    const BudgetPlace at = place(row);
    if (!at.is_code) {
      return to_float(static_cast<const T*>(exact)[at.index * head_dim + channel]);
    }
    float four[4];
    decode_four(context, codes + at.index * code_row_bytes(context, head_dim), head_dim,
                channel / 4 * 4, four);
    return channel % 4 == 0   ? four[0]
           : channel % 4 == 1 ? four[1]
           : channel % 4 == 2 ? four[2]
                              : four[3];
  }

  // Writes an exact row. numbers: [2, head_dim] a key, then a value.
  template <class T, class Thread>
  KVC_DEVICE void store(int row, const T* numbers, Thread& thread) const {
    for (int channel = thread.index(); channel < head_dim; channel += thread.count()) {
      key<T>(row)[channel] = numbers[channel];
      value<T>(row)[channel] = numbers[head_dim + channel];
    }
    thread.sync();
  }

  // The token of one row, with these numbers, comes into another.
  template <class T, class Thread>
  KVC_DEVICE void move(int from, int to, const T* numbers, Thread& thread) const {
    if (thread.index() == 0) {
      score(to) = score(from);
      position(to) = position(from);
    }
    if (place(to).is_code) {
      code(to, numbers, thread);
    } else {
      store(to, numbers, thread);
    }
  }

  // A thread makes codes of 32 channels.
  template <class T, class Thread>
  KVC_DEVICE void code(int row, const T* numbers, Thread& thread) const {
    const std::int64_t first = place(row).index * code_row_bytes(context, head_dim);
    const int groups = head_dim / kScaledChannels, scales = channel_bytes(context, head_dim);
    for (int i = thread.index(); i < 2 * groups; i += thread.count()) {
      const int group = i % groups;
      std::uint8_t* to = (i < groups ? cache.key_codes : cache.value_codes) + first;
      quantise_group<T>(reinterpret_cast<const std::uint32_t*>(numbers + i * kScaledChannels),
                        context, to + channel_bytes(context, group * kScaledChannels),
                        to + scales + 4 * group);
    }
    thread.sync();
  }

  // The product of a slot's key with another: the same in all lanes of a warp.
  template <class Thread>
  KVC_DEVICE float likeness(int slot, const float* other, Thread& thread) const {
    const float* of_slot = cache.residual_keys + slot_index(slot) * head_dim;
    float sum = 0;
    for (int channel = thread.lane(); channel < head_dim; channel += 32) {
      sum += of_slot[channel] * other[channel];
    }
    return warp_sum(thread, sum);
  }

  // of_slot: [2, head_dim] its key and value; numbers: those of one more member.
  template <class Thread>
  KVC_DEVICE void merge(const float* numbers, int slot, float members, const float* of_slot,
                        Thread& thread) const {
    float* slot_key = cache.residual_keys + slot_index(slot) * head_dim;
    float* slot_value = cache.residual_values + slot_index(slot) * head_dim;
    for (int channel = thread.index(); channel < head_dim; channel += thread.count()) {
      slot_key[channel] = merged_number(of_slot[channel], members, numbers[channel]);
      slot_value[channel] =
          merged_number(of_slot[head_dim + channel], members, numbers[head_dim + channel]);
    }
    if (thread.index() == 0) {
      count(slot) = members + 1;
    }
  }
};

}  // namespace kvc
