// Attention of one new token of each sequence over coded tokens whose keys and values are coded apart, on the GPU: codes
// of keys meet the query without being rebuilt, codes of values are summed as levels, which ProjectValues decodes once per
// query head.
//
// Where every KV head has a block of values of its own, one launch does both. Otherwise it leaves the weights in scratch
// memory, and the second launch of a RankAttention sums (attention_rank.h).
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/device_tiles.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// What a KV head's keys are sums of: number * (a, b) in two channels, rotated by the angle of the token's position.
// Arrays in GPU memory.
struct KeyRows {
  int count = 0;                           // of a KV head; heads with fewer have rows of weight 0
  const std::int32_t* channels = nullptr;  // [num_kv_heads, 2, count] of the head
  const float* weights = nullptr;          // [num_kv_heads, 2, count]
  const std::int32_t* angles =
      nullptr;  // [num_kv_heads, count] column of the angles; -1: not turned
};

// A key is gain * (the rows of `codes`, whose numbers are the levels of its coefficients) + (the rows of `means`, whose
// numbers are 1). A row's score is
//   number * (cos (p a + q b) + sin (q a - p b))     with the query's p and q in the row's channels
// so the angle of a tile's first token turns the two products, once per query head, and the tokens' distances from it,
// the same in all tiles, the levels.
struct CodedAttention {
  const void* query = nullptr;  // [num_sequences, num_heads, head_dim] post-RoPE
  DeviceElement element =
      DeviceElement::kBFloat16;                  // or float16, of the query; products are float16
  const DeviceTiles* keys = nullptr;             // [num_kv_heads] in GPU memory
  const DeviceTiles* values = nullptr;           // likewise; null: the weights alone
  int most_key_bytes = 0, most_value_bytes = 0;  // of a tile
  bool turned =
      false;  // codes are of keys before RoPE: their rows are turned; otherwise they have no angle
  KeyRows codes{}, means{};
  const float* cos = nullptr;  // [num_positions, num_angles]; cos of position 0 is a factor of all
  const float* sin = nullptr;
  int num_angles = 0;
  const std::int32_t* num_rows = nullptr;    // [num_sequences]
  const std::int32_t* first_rows = nullptr;  // [num_sequences] that the window shows; null: 0
  int first_position = 0;
  int num_sequences = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // up to 256, as many coefficients a head
  float scale = 1;
  float softcap = 0;
  DevicePartials partials{};  // output [.., num_heads, sums_width]; without values num_parts alone
  int sums_width = 0;         // the most coefficients of values, or more
  // Without values, as RankAttention's.
  int max_tiles = 0;
  void* weights = nullptr;
  float *tile_max = nullptr, *tile_sum = nullptr;
};

LaunchError check_coded_attention(const CodedAttention& params);

}  // namespace kvc
