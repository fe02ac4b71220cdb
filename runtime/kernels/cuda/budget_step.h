// One decoding step of a cache with a fixed budget per layer and KV head, in one launch: attention, scores, and
// what leaves the cache (ZeroMerge; without residual slots and with decay 1 it is H2O).
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

enum class Demotion {
  kPaper,  // the oldest token of the ring joins the context; over its size, the lowest score leaves
  kReleased,  // the lowest score among the old context leaves, and the newcomer takes its place
};

// Slots of every KV head of a sequence: [residual | context | ring]. With n tokens so far, the ring holds the
// last min(n, num_ring), token i in its slot i % num_ring; the context the first min(n - ring, num_context)
// slots; the residual likewise what is left. A residual slot is the mean of the tokens merged into it.
struct BudgetLayout {
  int num_residual = 1, num_context = 0, num_ring = 1;

  KVC_HOST_DEVICE int slots() const { return num_residual + num_context + num_ring; }
};

struct BudgetStep {
  BudgetLayout layout;
  int num_sequences = 1, num_heads = 1, num_kv_heads = 1,
      head_dim = 0;                                  // head_dim: even, at most 256
  DeviceElement element = DeviceElement::kBFloat16;  // or float16
  const void* query = nullptr;               // [num_sequences, num_heads, head_dim], post-RoPE
  const void* new_key = nullptr;             // [num_sequences, num_kv_heads, head_dim], post-RoPE
  const void* new_value = nullptr;           // likewise
  void* keys = nullptr;                      // [num_sequences, num_kv_heads, slots, head_dim]
  void* values = nullptr;                    // likewise
  float* scores = nullptr;                   // [num_sequences, num_kv_heads, slots]
  float* counts = nullptr;                   // [num_sequences, num_kv_heads, num_residual]
  const std::int32_t* num_tokens = nullptr;  // [num_sequences] before this step, in GPU memory
  float scale = 1;                           // of products: 1 / sqrt(head_dim)
  float alpha = 0.6f;                        // of log count, added to the scores of residual slots
  float decay = 0.98f;  // of the slots' scores, before this step's probabilities are added
  Demotion demotion = Demotion::kPaper;
  void* output = nullptr;  // [num_sequences, num_heads, head_dim], of `element`
};
LaunchError budget_step_cuda(const BudgetStep& params, void* stream);

// The same in plain loops on the CPU, all pointers to CPU memory.
void budget_step_reference(const BudgetStep& params);

}  // namespace kvc
