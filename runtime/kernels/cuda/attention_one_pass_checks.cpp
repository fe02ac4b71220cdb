#include <algorithm>
#include <cstdint>
#include <string>

#include "runtime/kernels/cuda/attention_one_pass.h"

namespace kvc {
namespace {

// Query heads of a block, in eights: sums of more do not fit beside keys of 64 rotary pairs in a thread's registers.
int most_query_tiles(const RankAttention& params) {
  return params.keys.pairs.num_pairs > 48 ? 2 : 4;
}

bool has_instance(const RankAttention& params) {
  const int pairs = params.keys.pairs.num_pairs;
  return !params.reads_codes() &&
         (params.latents.element == DeviceElement::kBFloat16 ||
          params.latents.element == DeviceElement::kFloat16) &&
         params.stored.pairs.num_pairs == 0 && params.value_rank <= kOnePassMostRank &&
         (pairs == 16 || pairs == 32 || pairs == 48 || pairs == 64) &&
         params.num_heads / params.num_kv_heads <= 8 * most_query_tiles(params);
}

std::int64_t divide_up(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

// Bytes of the key projections, of all KV heads, a token, where each copy of them meets so many tokens.
std::int64_t projection_bytes(const RankAttention& params, int tokens) {
  return std::int64_t{2} * 2 * params.keys.pairs.num_pairs * params.key_rank * params.num_kv_heads /
         tokens;
}

// Blocks that have work, at the longest sequences, and bytes that a token costs.
struct ShapeCost {
  std::int64_t blocks, bytes;
};
ShapeCost cost_of(const RankAttention& params, const OnePassLayout& at) {
  const std::int64_t latents = params.key_rank + params.value_rank;
  return {divide_up(params.max_tiles, at.tiles) * at.blocks * params.num_sequences,
          2 * latents * at.blocks + projection_bytes(params, 32 * at.tiles)};
}

// For two launches: every KV head's blocks read keys' latents, 256 tokens at a time; up to 32 query heads share values'.
std::int64_t bytes_of_two(const RankAttention& params) {
  return 2 * (std::int64_t{params.key_rank} * params.num_kv_heads +
              params.value_rank * divide_up(params.num_heads, 32)) +
         projection_bytes(params, 256);
}

}  // namespace

OnePassLayout one_pass_layout(const RankAttention& params) {
  const OnePassShape& shape = params.one_pass;
  const int group = params.num_heads / params.num_kv_heads, heads = 8 * shape.query_tiles;
  const int most = heads / group;
  OnePassLayout at{};
  at.tiles = kOnePassWarps / shape.heads_at_once;
  at.at_once = shape.heads_at_once;
  at.blocks = (params.num_kv_heads + most - 1) / most;
  at.kv_heads = (params.num_kv_heads + at.blocks - 1) / at.blocks;
  // A chunk's latents are copied two steps ahead, into the place of those that were read a step before that.
  at.round_steps = std::max(3, (params.key_rank + 31) / 32);
  const int rounds = (at.kv_heads + at.at_once - 1) / at.at_once;
  // Two for each 16 tokens of the values before, the first of which are copied in step 0.
  at.group_steps = std::max(rounds * at.round_steps, 2 * 2 * at.tiles + 1);
  // Odd multiples of 16 bytes: matrix loads meet no bank twice.
  at.key_stride = (params.key_rank + 31) / 32 * 32 + 8;
  at.rank_tiles = (params.value_rank + 16 * kOnePassWarps - 1) / (16 * kOnePassWarps);
  at.value_stride = 16 * at.rank_tiles + 8;
  at.ring = at.tiles * 32 * at.key_stride * 2;
  at.stage_bytes = at.at_once * 2 * params.keys.pairs.num_pairs * 40 * 2;
  at.values = at.ring + kOnePassStages * at.stage_bytes;
  at.weights = at.values + kOnePassWarps * 16 * at.value_stride * 2;
  at.weight_bytes = at.tiles * heads * 40 * 2;
  at.maxima = at.weights + 2 * at.weight_bytes;
  at.work = at.maxima + 3 * (at.tiles + 1) * heads * 4;
  at.bytes = at.work + 32;
  return at;
}

int one_pass_parts(const RankAttention& params, int multiprocessors) {
  const OnePassLayout at = one_pass_layout(params);
  const int blocks = at.blocks * params.num_sequences;
  const int most = (params.max_tiles + at.tiles - 1) / at.tiles;
  const int wanted = 2 * blocks <= multiprocessors ? multiprocessors / blocks
                                                   : (4 * multiprocessors + blocks - 1) / blocks;
  return std::max(1, std::min(wanted, most));
}

int most_one_pass_parts(int multiprocessors, int num_sequences, int max_tiles) {
  constexpr int kFewestTiles = kOnePassWarps / 4, kMostWaves = 8;
  const int wanted = std::max(kMostWaves, multiprocessors / num_sequences);
  return std::max(1, std::min(wanted, (max_tiles + kFewestTiles - 1) / kFewestTiles));
}

OnePassShape one_pass_shape(const RankAttention& params, int multiprocessors, int shared_bytes) {
  if (shared_bytes < kOnePassLeastShared || !has_instance(params)) {
    return {};
  }
  const auto is_enough = [&](std::int64_t blocks) { return 8 * blocks >= 7 * multiprocessors; };
  OnePassShape best;
  ShapeCost least{};
  const int group = params.num_heads / params.num_kv_heads;
  for (int query_tiles = most_query_tiles(params); 8 * query_tiles >= group; query_tiles /= 2) {
    for (int at_once = 1; at_once <= 4; at_once *= 2) {
      RankAttention shaped = params;
      shaped.one_pass = {query_tiles, at_once};
      const OnePassLayout at = one_pass_layout(shaped);
      if (at.bytes > shared_bytes || at_once > at.kv_heads) {
        continue;
      }
      const ShapeCost cost = cost_of(params, at);
      const bool fills = is_enough(cost.blocks), filled = is_enough(least.blocks);
      if (best.query_tiles == 0 || (fills && !filled) ||
          (fills == filled && (fills ? cost.bytes < least.bytes : cost.blocks > least.blocks))) {
        best = shaped.one_pass;
        least = cost;
      }
    }
  }
  return is_enough(least.blocks) && least.bytes > bytes_of_two(params) ? OnePassShape{} : best;
}

LaunchError check_one_pass_attention(const RankAttention& params, int shared_bytes) {
  if (LaunchError error = check_rank_attention(params); !error.empty()) {
    return error;
  }
  const OnePassShape& shape = params.one_pass;
  const std::string name = "latent attention in one launch: ";
  if (!has_instance(params)) {
    return name + "expected latents of 16 bits, values of rank up to " +
           std::to_string(kOnePassMostRank) +
           ", and 16, 32, 48 or 64 rotary pairs, all rebuilt; found values of rank " +
           std::to_string(params.value_rank) + " and " +
           std::to_string(params.keys.pairs.num_pairs) + " pairs; take two launches";
  }
  const auto is_one_of = [](int x, int most) { return (x == 1 || x == 2 || x == 4) && x <= most; };
  if (!is_one_of(shape.query_tiles, most_query_tiles(params)) ||
      !is_one_of(shape.heads_at_once, 4) ||
      params.num_heads / params.num_kv_heads > 8 * shape.query_tiles) {
    return name + std::to_string(8 * shape.query_tiles) + " query heads and " +
           std::to_string(shape.heads_at_once) +
           " KV heads at once of a block; take a shape of one_pass_shape()";
  }
  const int bytes = one_pass_layout(params).bytes;
  if (bytes > shared_bytes || shared_bytes < kOnePassLeastShared) {
    return name + std::to_string(bytes) + " bytes of shared memory, a block has " +
           std::to_string(shared_bytes) + "; take two launches";
  }
  return {};
}

}  // namespace kvc
