// What lies between a step's projections and its attention, in one launch on the GPU: norms of queries and keys, RoPE,
// the new token's row of the store.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rope.h"
#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// Tokens that lie apart from a layer's exact rows: codes, or what a latent group has decided.
struct ApartRows {
  const std::int32_t* num_rows = nullptr;  // [num_sequences]; null: there are none
  DeviceRows positions{};  // int32 of width 1, ascending; no blocks: the tokens behind the sinks
  std::int32_t* first_rows = nullptr;  // [num_sequences] the first of them that `window` shows
  // [num_sequences], or null: 1 where that is the very first of them, which is read from a store of its own then; first_rows
  // is the one behind it. Otherwise 0.
  std::int32_t* very_first = nullptr;
};

// One new token of every sequence. `projected` holds of each its query heads and, where the layer stores keys and
// values, its KV heads' keys and then values.
struct AppendRows {
  const float* projected = nullptr;  // [num_sequences, heads * head_dim], biases added
  int num_sequences = 0;
  int num_heads = 0;
  int num_kv_heads = 0;  // 0: nothing is stored
  int head_dim = 0;
  DeviceElement element = DeviceElement::kBFloat16;  // or float16: of query, key and value
  const float* query_norm =
      nullptr;                      // RMS norm before RoPE: [head_dim], over each head; null: none
  const float* key_norm = nullptr;  // likewise
  bool norm_whole = false;          // norms over all heads of a token: [num_heads * head_dim]
  float norm_epsilon = 0;
  DeviceRope rope{};                        // num_pairs 0: none
  const std::int32_t* positions = nullptr;  // [num_sequences] of the new token: its angles
  const std::int32_t* rows =
      nullptr;                    // [num_sequences] of the store, that it becomes; null: positions
  void* query = nullptr;          // [num_sequences, num_heads, head_dim] post-RoPE
  void* query_float16 = nullptr;  // the same in float16, in which codes are met; null: nowhere
  DeviceRows key{}, value{};      // numbers; the blocks of the row are there
  // float32, of width num_kv_heads: the root mean square that key_norm divides each head by. No blocks: not stored.
  DeviceRows key_rms{};
  std::int32_t* first_rows = nullptr;  // [num_sequences] the first row that `window` shows, or null
  int window = 0;
  // Where there are such, all behind the first `sinks` tokens, first_rows is of the others' rows.
  ApartRows apart[2]{};
  int sinks = 0;
};
LaunchError check_append_rows(const AppendRows& params);

// One new row of every sequence from float32 numbers as they are: latents, and what is held to decide tokens later.
struct AppendLatents {
  const float* from = nullptr;  // [num_sequences, to.width]
  int num_sequences = 0;
  const std::int32_t* rows = nullptr;  // [num_sequences] of the store, that it becomes
  DeviceRows to{};                     // bfloat16 or float16; the blocks of the row are there
  bool are_floats = false;             // the store's numbers are float32 instead
};

}  // namespace kvc
