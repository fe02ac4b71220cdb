// Attention of one new token of each sequence over the rows of a KV store, on the GPU.
//
// The tokens of a sequence are split over blocks; each gives a partial softmax for CombinePartials. A KV
// head's query heads share every read of its rows. Lengths lie in GPU memory, so that a CUDA graph holds for all.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/device_rope.h"
#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// What turns a raw key into one that attention reads: bias, over each head RMS norm (both where there are such),
// then RoPE.
struct DeviceRawKeys {
  DeviceRope rope{};
  const float* bias = nullptr;  // [num_kv_heads, head_dim], or null
  const float* norm = nullptr;  // [head_dim], or null
  float norm_epsilon = 0;
};

// Rows of width num_kv_heads * head_dim; float8 and codes become 16-bit numbers on their way to the tensor cores.
struct AttendedRows {
  DeviceRows key{}, value{};
  bool raw_key = false;                 // codes before norm and RoPE
  const float* key_factor = nullptr;    // [num_kv_heads, head_dim] of fused layers; null: ones
  const float* value_factor = nullptr;  // likewise
};

// num_sources 2: a fused layer, whose keys and values are channelwise sums of two stored layers', as many rows at
// the same positions: q . (a K) = (a q) . K and P (b V) = b (P V), so neither is ever written.
struct DenseAttention {
  const void* query = nullptr;  // [num_sequences, num_heads, head_dim] post-RoPE
  DeviceElement element =
      DeviceElement::kBFloat16;  // of the query, of products, of stores without codes
  AttendedRows rows[2];
  int num_sources = 1;
  const std::int32_t* num_rows = nullptr;    // [num_sequences]
  const std::int32_t* first_rows = nullptr;  // [num_sequences] that the window shows; null: 0
  const std::int32_t* positions =
      nullptr;  // [num_sequences, positions_stride]; null: first_position + row
  std::int64_t positions_stride = 0;
  int first_position = 0;
  DeviceRawKeys raw_keys{};
  int num_sequences = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // 32, 64, 128 or, of one source, 256
  float scale = 1;
  float softcap = 0;          // s: scores x, once scaled, become s tanh(x / s); 0: none
  DevicePartials partials{};  // num_parts: of a sequence's tokens, shared evenly
};

// The same over numbers of 16 bits alone: a library that reads no others links no kernels for them.
struct NumberAttention : DenseAttention {};

// What makes a launch impossible, or empty.
LaunchError check_dense_attention(const DenseAttention& params, int num_sources);
// Whether rows become numbers only in the kernel: float8 and codes.
bool needs_decoding(const DeviceRows& rows);

}  // namespace kvc
