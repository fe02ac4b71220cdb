// Attention of one new token of each sequence over latents or coded tokens, on the GPU: keys are rebuilt on the
// tensor cores, values summed as latents or codes, which a projection turns into values, once per query head.
//
// Two launches, so that a row is never held for both uses and ranks have no bound:
//   rebuild_scores  keys of 32 tokens and a KV head a warp, bias, norm, RoPE, products with the query; the
//                   softmax of every 32 tokens by itself, in scratch memory: 2 bytes per query head and token
//   sum_ranks       reads every latent once for all query heads that share it; partial softmaxes of latents
// then CombinePartials over the parts, and ProjectValues.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/device_tiles.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// Rotary pairs of each KV head's keys, in any order: scores do not depend on it. Arrays in GPU memory.
struct KeyPairs {
  int num_pairs = 0;  // a multiple of 8
  const std::int32_t* channels =
      nullptr;  // [num_kv_heads, 2, num_pairs] of the query's head; -1: no such pair
  const std::int32_t* angles =
      nullptr;  // [num_kv_heads, num_pairs] column of the angles; -1: not turned
  const float* offset =
      nullptr;  // [num_kv_heads, 2, num_pairs] added before norm and RoPE; null: zeros
};

// How many pairs a kernel rebuilds.
inline constexpr int kRebuiltPairs[] = {16, 24, 32, 48, 64};
// The fewest of them that hold a head's channels; 0: none do.
constexpr int rebuilt_pairs(std::int64_t head_dim) {
  for (const int pairs : kRebuiltPairs) {
    if (head_dim <= 2 * pairs) {
      return pairs;
    }
  }
  return 0;
}

// Keys = gain * scale * (projection latent) + offset, then norm and RoPE. Layouts are made once, when a model is
// loaded; rows of `projection` without a pair are zeros.
struct RebuiltKeys {
  KeyPairs pairs{};  // as many as kRebuiltPairs says
  const void* projection =
      nullptr;          // [num_kv_heads, 2, num_pairs, rank_stride], zeros behind the rank
  int rank_stride = 0;  // a multiple of 32
  // Or, of 16-bit latents, each sequence's own, in one piece from projections[sequence * projections_stride] on: [num_kv_heads, 2,
  // head_dim / 2, rank_stride] of the first head_dim / 2 pairs, rank_stride a multiple of 8 and nothing behind it.
  const void* const* projections = nullptr;
  std::int64_t projections_stride = 0;
  const float* scale = nullptr;  // as pairs.offset; null: ones
  const float* norm = nullptr;   // likewise: factors of the normalised key; null: no norm
  float norm_epsilon = 0;
};

// Key channels that the latent holds as they are (pivot gauge, docs/methods.md): a KV head's first channels of its
// num_stored pairs stand from first_column on, then their second ones. Without norm.
struct StoredKeys {
  KeyPairs pairs{};                            // num_pairs 0: none
  int num_stored = 0;                          // of the pairs
  const std::int32_t* first_column = nullptr;  // [num_kv_heads] of the latent
};

// Coded tokens' blocks. KV heads share a block num_kv_heads / num_blocks each.
struct RankCodes {
  const DeviceTiles* tiles = nullptr;  // [num_blocks] in GPU memory; null: there are none
  int num_blocks = 0;
  int most_coefficients = 0;  // of a block
};

struct RankAttention {
  const void* query = nullptr;  // [num_sequences, num_heads, head_dim] post-RoPE
  DeviceElement element =
      DeviceElement::kBFloat16;  // of query and projection; coded tokens: float16
  // Either latents, whose columns key_column .. key_column + key_rank - 1 make keys, or coded tokens: blocks of keys and
  // values, the same ones or others. Without blocks of keys the weights are there (attention_codes.h): values are summed.
  DeviceRows latents{};
  int key_column = 0, key_rank = 0, value_column = 0,
      value_rank = 0;  // multiples of 8, of codes 32
  RankCodes key_codes{}, value_codes{};
  RebuiltKeys keys{};
  StoredKeys stored{};
  const float* cos = nullptr;  // [num_positions, num_angles], fewer than 2^31 of them
  const float* sin = nullptr;
  int num_angles = 0;
  const std::int32_t* num_rows = nullptr;    // [num_sequences]
  const std::int32_t* first_rows = nullptr;  // [num_sequences] that the window shows; null: 0
  const std::int32_t* positions =
      nullptr;  // [num_sequences, positions_stride]; null: first_position + row
  std::int64_t positions_stride = 0;
  DeviceRows paged_positions{};  // int32, of width 1, instead of them where it has blocks
  int first_position = 0;
  int num_sequences = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 1;
  float softcap = 0;
  int max_tiles = 0;  // of 32 tokens: what a sequence may have at most
  // Scratch memory.
  void* weights = nullptr;    // [num_sequences, max_tiles, num_heads, 32] of `element`
  float* tile_max = nullptr;  // [num_sequences, max_tiles, num_heads]
  float* tile_sum = nullptr;  // likewise
  DevicePartials partials{};  // output [.., num_heads, sums_width]
  int sums_width =
      0;  // value_rank or value_codes.most_coefficients, rounded up to a multiple of 32

  KVC_HOST_DEVICE bool reads_codes() const { return value_codes.tiles != nullptr; }
  KVC_HOST_DEVICE bool has_weights() const { return reads_codes() && key_codes.tiles == nullptr; }
  // Index of tile_max and tile_sum; and of weights in units of a tile.
  KVC_HOST_DEVICE std::int64_t tile_row(int sequence, int tile, int head) const {
    return (static_cast<std::int64_t>(sequence) * max_tiles + tile) * num_heads + head;
  }
};

LaunchError check_rank_attention(const RankAttention& params);
// The first launch of two alone.
LaunchError rebuild_scores_cuda(const RankAttention& params, void* stream);

// output[s, h, d] = scale[d] * sum_c projection[d, c] * sums[s, h, c] + offset[d], d: a channel of h's KV head.
struct ProjectValues {
  const float* sums = nullptr;  // [num_sequences, num_heads, sums_width], combined
  int sums_width = 0;
  const void* projection = nullptr;  // [num_kv_heads, head_dim, rank_stride]
  // Or each sequence's own, from projections[sequence * projections_stride] on; null: it has no latents.
  const void* const* projections = nullptr;
  std::int64_t projections_stride = 0;
  DeviceElement element = DeviceElement::kBFloat16;
  int rank = 0, rank_stride = 0;
  const float* scale = nullptr;   // [num_kv_heads, head_dim]; null: ones
  const float* offset = nullptr;  // likewise; null: zeros
  int num_sequences = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float* output = nullptr;  // [num_sequences, num_heads, head_dim]
};

}  // namespace kvc
