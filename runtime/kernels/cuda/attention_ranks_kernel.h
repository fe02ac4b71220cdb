// Grid: (part of the tokens; 64 latents a warp; sequence and query heads that share latents, 8 * kQueryTiles at a
// time). Every warp walks over its part's tiles of 32 tokens with a ring of its own; no barrier of the block.
#pragma once

#include "runtime/kernels/cuda/attention_rank_source.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

constexpr int kWarpRanks = 2 * kRankChunk;

template <class Source>
struct RankSumsShared {
  static constexpr int kStages = 3;
  static constexpr int kStageBytes = 2 * Source::kBytes;
  static constexpr int kDecodedBytes = Source::kDecodes ? 2 * kTileRows * kChunkStride * 2 : 0;
  static constexpr int kWarpBytes = kStages * kStageBytes + kDecodedBytes;
};

// Query heads first_head .. first_head + num_heads - 1 of a sequence, on one block of latents.
struct RankHeads {
  int sequence, block, first_head, num_heads;
};
KVC_HOST_DEVICE int rank_head_chunks(const RankAttention& params, int query_tiles) {
  const int blocks = params.reads_codes() ? params.value_codes.num_blocks : 1;
  return blocks * ((params.num_heads / blocks + 8 * query_tiles - 1) / (8 * query_tiles));
}
KVC_HOST_DEVICE RankHeads rank_heads(const RankAttention& params, int query_tiles, int index) {
  const int blocks = params.reads_codes() ? params.value_codes.num_blocks : 1;
  const int chunks = rank_head_chunks(params, query_tiles), per_block = chunks / blocks;
  const int chunk = index % chunks, heads = params.num_heads / blocks;
  const int in_block = chunk % per_block * 8 * query_tiles;
  const int left = heads - in_block, most = 8 * query_tiles;
  return {index / chunks, chunk / per_block, chunk / per_block * heads + in_block,
          left < most ? left : most};
}

// Softmaxes of the part's tiles as one: its maximum, for query heads lane / 4 + 8 n.
template <int kQueryTiles, class Thread>
KVC_DEVICE void part_max(Thread& thread, const RankAttention& params, const RankHeads& heads,
                         int first_tile, int last_tile, float (&max)[kQueryTiles]) {
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    const int head = 8 * n + thread.lane() / 4;
    float largest = negative_infinity();
    if (head < heads.num_heads) {
      // Four lanes share a head's tiles.
      for (int tile = first_tile + thread.lane() % 4; tile < last_tile; tile += 4) {
        const float of_tile =
            params.tile_max[params.tile_row(heads.sequence, tile, heads.first_head + head)];
        largest = of_tile > largest ? of_tile : largest;
      }
    }
    KVC_UNROLL
    for (int lanes = 1; lanes < 4; lanes *= 2) {
      const float other = thread.shuffle_xor(largest, lanes);
      largest = other > largest ? other : largest;
    }
    max[n] = largest;
  }
}

// The part's maxima and sums, by the warp with the first latents.
template <int kQueryTiles, class Thread>
KVC_DEVICE void write_part(Thread& thread, const RankAttention& params, const RankHeads& heads,
                           int first_tile, int last_tile, std::int64_t row,
                           const float (&max)[kQueryTiles]) {
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    const int head = 8 * n + thread.lane() / 4;
    float sum = 0;
    if (head < heads.num_heads) {
      for (int tile = first_tile + thread.lane() % 4; tile < last_tile; tile += 4) {
        const std::int64_t at = params.tile_row(heads.sequence, tile, heads.first_head + head);
        sum += params.tile_sum[at] * exp_below(params.tile_max[at], max[n]);
      }
    }
    KVC_UNROLL
    for (int lanes = 1; lanes < 4; lanes *= 2) {
      sum += thread.shuffle_xor(sum, lanes);
    }
    if (thread.lane() % 4 == 0 && head < heads.num_heads) {
      params.partials.max[row + head] = max[n];
      params.partials.sum[row + head] = sum;
    }
  }
}

// Weights of one tile below the part's maxima, times the tokens' gains.
template <class T, class Source, int kQueryTiles, class Thread>
KVC_DEVICE void read_weights(Thread& thread, const RankAttention& params, const RankHeads& heads,
                             int tile, const float (&max)[kQueryTiles],
                             WeightFragments<kQueryTiles>& weights) {
  const int lane = thread.lane();
  const std::int64_t row = params.tile_row(heads.sequence, tile, heads.first_head);
  const std::uint8_t* codes = nullptr;
  if constexpr (Source::kGains) {
    codes = tile_at(params.value_codes.tiles[heads.block], heads.sequence, tile);
  }
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    const int head = 8 * n + lane / 4;
    const bool exists = head < heads.num_heads;
    const float factor = exists ? exp_below(params.tile_max[row + head], max[n]) : 0.0f;
    const auto* words =
        static_cast<const std::uint32_t*>(params.weights) + (row + head) * (kTileRows / 2);
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t pair = exists ? words[8 * m + 4 * i + lane % 4] : 0;
        float low = low_of_pair<T>(pair) * factor, high = high_of_pair<T>(pair) * factor;
        if constexpr (Source::kGains) {
          const int token = 16 * m + 8 * i + 2 * (lane % 4);
          low *= tile_gain(params.value_codes.tiles[heads.block], codes, token);
          high *= tile_gain(params.value_codes.tiles[heads.block], codes, token + 1);
        }
        weights.b[m][n][i] = pack_pair<T>(low, high);
      }
    }
  }
}

template <class T, int kQueryTiles, class Source>
struct SumRanksKernel : Kernel<RankAttention, 128, 1> {
  static constexpr const char* kName = "sum_ranks";

  template <class Thread>
  static KVC_DEVICE void run(const RankAttention& params, Thread& thread) {
    using Shared = RankSumsShared<Source>;
    const RankHeads heads = rank_heads(params, kQueryTiles, thread.block_z());
    const int lane = thread.lane(), part = thread.block_x();
    const int first_rank = (thread.block_y() * (thread.count() / 32) + thread.warp()) * kWarpRanks;
    if (first_rank >= params.sums_width) {
      return;  // no barrier of the block follows
    }
    const PartRange range = split_rows(params, heads.sequence, kTileRows, part);
    const int first_tile = range.first / kTileRows;
    const int last_tile =
        range.first < range.last ? (range.last + kTileRows - 1) / kTileRows : first_tile;
    const int rank = Source::rank(params, heads.block, params.value_rank);
    std::uint8_t* ring = thread.shared() + thread.warp() * Shared::kWarpBytes;
    T* decoded = reinterpret_cast<T*>(ring + Shared::kStages * Shared::kStageBytes);
    const auto start = [&](int tile) {
      if (tile < last_tile) {
        std::uint8_t* stage = ring + (tile - first_tile) % Shared::kStages * Shared::kStageBytes;
        KVC_UNROLL
        for (int chunk = 0; chunk < 2; ++chunk) {
          const int first = first_rank + chunk * kRankChunk;
          if (first < rank) {
            Source::copy(thread, params, heads.block, heads.sequence, tile,
                         range.last - tile * kTileRows, params.value_column, rank, first,
                         stage + chunk * Source::kBytes);
          }
        }
      }
      thread.commit();
    };
    start(first_tile);
    start(first_tile + 1);
    float max[kQueryTiles];
    part_max(thread, params, heads, first_tile, last_tile, max);
    float sums[kWarpRanks / 16][kQueryTiles][4] = {};
    for (int tile = first_tile; tile < last_tile; ++tile) {
      thread.sync_warp();  // the oldest stage was read
      start(tile + 2);
      WeightFragments<kQueryTiles> weights;
      read_weights<T, Source>(thread, params, heads, tile, max, weights);
      thread.template wait<2>();
      thread.sync_warp();
      const std::uint8_t* stage =
          ring + (tile - first_tile) % Shared::kStages * Shared::kStageBytes;
      KVC_UNROLL
      for (int chunk = 0; chunk < 2; ++chunk) {
        const int first = first_rank + chunk * kRankChunk;
        if (first >= rank) {
          continue;
        }
        const T* latents = reinterpret_cast<const T*>(stage + chunk * Source::kBytes);
        if constexpr (Source::kDecodes) {
          T* to = decoded + chunk * kTileRows * kChunkStride;
          Source::decode(thread, params, heads.block, first, stage + chunk * Source::kBytes, to);
          thread.sync_warp();
          latents = to;
        }
        KVC_UNROLL
        for (int m = 0; m < 2; ++m) {
          KVC_UNROLL
          for (int k = 0; k < 2; ++k) {
            std::uint32_t a[4];
            load_rank_rows<Source::kTokensAreRows>(thread, a, latents, 16 * m, 16 * k);
            KVC_UNROLL
            for (int n = 0; n < kQueryTiles; ++n) {
              thread.multiply_add(T{}, sums[2 * chunk + m][n], a, weights.b[k][n]);
            }
          }
        }
      }
    }
    const std::int64_t row =
        params.partials.row(heads.sequence, part, params.num_heads, heads.first_head);
    if (first_rank == 0) {
      write_part(thread, params, heads, first_tile, last_tile, row, max);
    }
    KVC_UNROLL
    for (int n = 0; n < kQueryTiles; ++n) {
      KVC_UNROLL
      for (int m = 0; m < kWarpRanks / 16; ++m) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int head = 8 * n + 2 * (lane % 4) + i % 2;
          const int at = first_rank + 16 * m + lane / 4 + 8 * (i / 2);
          if (head < heads.num_heads && at < params.sums_width) {
            params.partials.output[(row + head) * params.sums_width + at] = sums[m][n][i];
          }
        }
      }
    }
  }
};

// As many query heads at once as share their latents.
template <class Launcher>
LaunchError launch_sums(const RankAttention& params, const Launcher& launcher) {
  if (LaunchError error = check_rank_attention(params); !error.empty()) {
    return error;
  }
  const int heads = params.num_heads / (params.reads_codes() ? params.value_codes.num_blocks : 1);
  return with_rank_source<&RankAttention::value_codes>(params, [&](auto type, auto source) {
    return with_number<1, 2, 4>(
        heads <= 8    ? 1
        : heads <= 16 ? 2
                      : 4,
        [&](auto tiles) {
          using Source = decltype(source);
          using Instance = SumRanksKernel<decltype(type), decltype(tiles)::value, Source>;
          const int warps = launcher.threads(Instance::kThreads) / 32;
          return launcher.template run<Instance>(
              params,
              {params.partials.num_parts, divide_up(params.sums_width, warps * kWarpRanks),
               params.num_sequences * rank_head_chunks(params, tiles)},
              32 * warps, warps * RankSumsShared<Source>::kWarpBytes);
        });
  });
}

}  // namespace kvc
