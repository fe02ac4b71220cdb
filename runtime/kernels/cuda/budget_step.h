// One decoding step of caches with a fixed budget per layer and KV head: attention, what it says of every token, and what
// leaves (ZeroMerge; without residual slots and with decay 1 it is H2O, without context StreamingLLM), as
// runtime/policies/kept_policy.cpp does on the CPU.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

enum class Demotion {
  kPaper,  // the oldest token of the ring joins the context; the lowest score leaves, the newcomer's perhaps
  kReleased,  // the lowest score among the old context leaves, and the newcomer takes its place
};

// The rows of every KV head of a sequence: [sinks | context | ring], and residual slots, each the mean of the tokens
// merged into it. The token at position p is in row p % num_ring of the ring.
struct BudgetLayout {
  int num_sinks = 0, num_context = 0, num_ring = 1, num_residual = 0;

  KVC_HOST_DEVICE int rows() const { return num_sinks + num_context + num_ring; }
  KVC_HOST_DEVICE int budget() const { return rows() + num_residual; }
};

// One sequence's layer, all in GPU memory. As long as no more than budget() tokens have come, row i is token i and
// there are no others; with the next one, in row budget(), rows are brought into the layout from outside. From then
// on each step ends in the layout.
struct BudgetCache {
  BudgetLayout layout;
  int capacity = 0;         // rows that there is memory for, exact ones and codes
  void* keys = nullptr;     // [num_kv_heads, capacity, head_dim] post-RoPE
  void* values = nullptr;   // likewise
  float* scores = nullptr;  // [num_kv_heads, capacity]; null: num_context is 0, nothing is ranked
  std::int32_t* positions =
      nullptr;                       // likewise: of equal scores the earliest token's is the lowest
  float* residual_keys = nullptr;    // [num_kv_heads, num_residual, head_dim]
  float* residual_values = nullptr;  // likewise
  float* counts = nullptr;           // [num_kv_heads, num_residual] of members; 0: free
  // Under BudgetStep::context int8 or int4, from the layout on: [num_kv_heads, num_context, code_row_bytes()], and `keys`
  // and `values` have the other rows, sinks and ring, one after the other: [num_kv_heads, capacity - num_context, head_dim].
  std::uint8_t* key_codes = nullptr;
  std::uint8_t* value_codes = nullptr;
};

// For one KV head's key or value: its codes, then a float16 scale and minimum for every 32 channels (kv_rows.h).
KVC_HOST_DEVICE int code_row_bytes(DeviceElement element, int head_dim) {
  return channel_bytes(element, head_dim) + head_dim / kScaledChannels * 4;
}

// A row and what it is chosen by.
struct Chosen {
  float value;
  int position, row;
};

// One launch, whose results do not depend on the order in which its blocks run. Blocks of several parts wait for one
// another: the launch is refused where the GPU cannot hold all of them at once.
struct BudgetStep {
  const BudgetCache* caches = nullptr;  // [num_sequences] in GPU memory
  int num_sequences = 1, num_heads = 1, num_kv_heads = 1, head_dim = 0;  // 32, 64, 128 or 256
  DeviceElement element = DeviceElement::kBFloat16;                      // or float16
  DeviceElement context =
      DeviceElement::kBFloat16;              // int8, int4: of the context's rows; else `element`
  const void* query = nullptr;               // [num_sequences, num_heads, head_dim], post-RoPE
  const void* new_key = nullptr;             // [num_sequences, num_kv_heads, head_dim], post-RoPE
  const void* new_value = nullptr;           // likewise
  const std::int32_t* num_tokens = nullptr;  // [num_sequences] before this step, in GPU memory
  float scale = 1;                           // of products: 1 / sqrt(head_dim)
  float softcap = 0;    // s: products x, once scaled, become s tanh(x / s); 0: none
  float alpha = 0.6f;   // of log count, added to the products of residual slots
  float decay = 0.98f;  // of scores, before this step's probabilities are added
  Demotion demotion = Demotion::kPaper;
  DevicePartials
      partials{};  // of head_dim channels; num_parts: of a sequence's rows, shared evenly (budget_parts())
  std::uint32_t* arrived =
      nullptr;  // [num_sequences, num_kv_heads], zeros before and after a step; null: one part
  Chosen* lowest =
      nullptr;  // [num_sequences, num_kv_heads, num_parts]; null: one part, or nothing is ranked
  float* products =
      nullptr;  // [num_sequences, num_heads, products_stride]: of rows, then of the new token
  int products_stride = 0;  // more than any cache's capacity; 0: nothing is ranked
  void* output = nullptr;   // [num_sequences, num_heads, head_dim], of `element`
};
LaunchError check_budget_step(const BudgetStep& params);

// In how many parts a launch shares its sequences' rows: no more blocks than there are multiprocessors, each of which
// holds one, and no fewer than four tiles of 32 rows a part.
inline int budget_parts(int multiprocessors, int num_sequences, int num_kv_heads, int num_rows) {
  const int wanted = multiprocessors / (num_sequences * num_kv_heads), most = num_rows / 128;
  const int parts = wanted < most ? wanted : most;
  return parts > 1 ? parts : 1;
}

// The same in plain loops on the CPU, all pointers to CPU memory; partials, arrivals and products are not written.
void budget_step_reference(const BudgetStep& params);

}  // namespace kvc
