// What attention under a budget and what follows from it share: which rows hold tokens, and which leaves.
#pragma once

#include "runtime/kernels/cuda/budget_step.h"
#include "runtime/kernels/cuda/device_softmax.h"

namespace kvc {

// What a cache holds when `n` tokens have come, besides the one that comes now.
struct BudgetFill {
  int rows, residual;  // residual slots that may be in use
  bool is_laid_out;
};
KVC_HOST_DEVICE BudgetFill budget_fill(const BudgetLayout& layout, int n) {
  const bool is_laid_out = n > layout.budget();
  return {is_laid_out ? layout.rows() : n, is_laid_out ? layout.num_residual : 0, is_laid_out};
}
// The row that the ring's oldest token has, and that the new token, at position n, gets.
KVC_HOST_DEVICE int ring_row(const BudgetLayout& layout, int n) {
  return layout.num_sinks + layout.num_context + n % layout.num_ring;
}

// Where a row's key and value lie: among the exact rows of all KV heads, or among the codes of all contexts.
struct BudgetPlace {
  bool is_code;
  std::int64_t index;
};
KVC_HOST_DEVICE BudgetPlace budget_place(const BudgetCache& cache, DeviceElement context,
                                         int kv_head, int row) {
  const int num_codes = is_coded(context) ? cache.layout.num_context : 0;
  const int in_context = row - cache.layout.num_sinks;
  if (in_context >= 0 && in_context < num_codes) {
    return {true, static_cast<std::int64_t>(kv_head) * num_codes + in_context};
  }
  return {false, static_cast<std::int64_t>(kv_head) * (cache.capacity - num_codes) +
                     (in_context < 0 ? row : row - num_codes)};
}

// Channels `channel` .. + 3, a multiple of 4, of a row of codes.
KVC_HOST_DEVICE void decode_four(DeviceElement element, const std::uint8_t* row, int head_dim,
                                 int channel, float (&to)[4]) {
  const std::uint32_t scale = *reinterpret_cast<const std::uint32_t*>(
      row + channel_bytes(element, head_dim) + channel / kScaledChannels * 4);
  const std::uint32_t codes = four_codes(codes_place(element, channel), row);
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    to[i] = dequantise(codes >> (8 * i) & 0xFF, low_of_pair<Float16>(scale),
                       high_of_pair<Float16>(scale));
  }
}

// The lower value; of equal ones the earlier position.
KVC_HOST_DEVICE Chosen lower(const Chosen& a, const Chosen& b) {
  const bool second = b.value < a.value || (b.value == a.value && b.position < a.position);
  return second ? b : a;
}
constexpr int kNoPosition = 0x7FFFFFFF;
KVC_HOST_DEVICE Chosen nothing_chosen() { return {INFINITY, kNoPosition, -1}; }

// Mean of a slot's `count` members and one more.
KVC_HOST_DEVICE float merged_number(float slot, float count, float number) {
  const float members = count + 1;
  return count / members * slot + 1 / members * number;
}

// What is added to the products of a residual slot.
KVC_HOST_DEVICE float slot_bias(float alpha, float count) {
  return count > 0 ? alpha * logf(count) : negative_infinity();
}

}  // namespace kvc
