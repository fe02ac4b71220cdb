// Grid: (tiles of 32 tokens, as many as a block has warps; KV head; sequence). The block's warps share the key
// projection, which passes through a ring of three stages of 32 columns; each warp has its own tokens.
#pragma once

#include "runtime/kernels/cuda/attention_tile_scores.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

template <int kPairTiles, class Source>
struct RebuildShared {
  static constexpr int kStages = 3;
  static constexpr int kDecodedBytes = Source::kDecodes ? kTileRows * kChunkStride * 2 : 0;
  static KVC_HOST_DEVICE constexpr int stage_bytes(int warps) {
    return kProjectionBytes<kPairTiles> + warps * Source::kBytes;
  }
  // Behind the ring: decoded numbers of each warp.
  static constexpr int bytes(int warps) {
    return kStages * stage_bytes(warps) + warps * kDecodedBytes;
  }
};

template <class T, int kPairTiles, class Source>
struct RebuildScoresKernel : Kernel<RankAttention, 256, 1> {
  static constexpr const char* kName = "rebuild_scores";

  template <class Thread>
  static KVC_DEVICE void run(const RankAttention& params, Thread& thread) {
    using Shared = RebuildShared<kPairTiles, Source>;
    const int warps = thread.count() / 32, kv_head = thread.block_y(), sequence = thread.block_z();
    const int num_rows = params.num_rows[sequence];
    const int first_row = params.first_rows == nullptr ? 0 : params.first_rows[sequence];
    const int first_tile = thread.block_x() * warps;
    // Blocks of tokens that are not there, or that the window hides.
    if (first_tile * kTileRows >= num_rows || (first_tile + warps) * kTileRows <= first_row) {
      return;
    }
    const TokenTile tokens{sequence, first_tile + thread.warp(),
                           first_row - (first_tile + thread.warp()) * kTileRows,
                           num_rows - (first_tile + thread.warp()) * kTileRows};
    const bool is_there = tokens.last > 0 && tokens.first < kTileRows;
    const int block =
        Source::kGains ? kv_head / (params.num_kv_heads / params.key_codes.num_blocks) : 0;
    const int rank = Source::rank(params, block, params.key_rank);
    const int chunks = (rank + kRankChunk - 1) / kRankChunk;
    const KeyProjection<T> projection = key_projection<T>(params, sequence, kv_head);
    T* decoded =
        reinterpret_cast<T*>(thread.shared() + Shared::kStages * Shared::stage_bytes(warps) +
                             thread.warp() * Shared::kDecodedBytes);
    const auto start = [&](int chunk) {
      if (chunk < chunks) {
        std::uint8_t* stage =
            thread.shared() + chunk % Shared::kStages * Shared::stage_bytes(warps);
        copy_projection<kPairTiles>(thread, projection, chunk, stage);
        if (is_there) {
          Source::copy(thread, params, block, sequence, tokens.tile, tokens.last, params.key_column,
                       rank, chunk * kRankChunk,
                       stage + kProjectionBytes<kPairTiles> + thread.warp() * Source::kBytes);
        }
      }
      thread.commit();
    };
    start(0);
    start(1);
    KeyTile<kPairTiles> keys = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      thread.template wait<1>();
      thread.sync();  // the chunk is there, and the stage of the one before is free
      start(chunk + 2);
      const std::uint8_t* stage =
          thread.shared() + chunk % Shared::kStages * Shared::stage_bytes(warps);
      const std::uint8_t* own =
          stage + kProjectionBytes<kPairTiles> + thread.warp() * Source::kBytes;
      if (is_there) {
        const T* latents = reinterpret_cast<const T*>(own);
        if constexpr (Source::kDecodes) {
          thread.sync_warp();  // the chunk before was read
          Source::decode(thread, params, block, chunk * kRankChunk, own, decoded);
          thread.sync_warp();
          latents = decoded;
        }
        add_products<T, kPairTiles, Source::kTokensAreRows>(
            thread, latents, kChunkStride, reinterpret_cast<const T*>(stage), keys);
      }
    }
    if (!is_there) {
      return;  // no barrier of the block follows
    }
    float gains[2][2] = {{1, 1}, {1, 1}};
    if constexpr (Source::kGains) {
      const std::uint8_t* tile = tile_at(params.key_codes.tiles[block], sequence, tokens.tile);
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        gains[i / 2][i % 2] = tile_gain(params.key_codes.tiles[block], tile,
                                        fragment_token(i / 2, 2 * (i % 2), thread.lane()));
      }
    }
    finish_keys(thread, params, kv_head, tokens, gains, keys);
    const int group = params.num_heads / params.num_kv_heads;
    const std::int64_t row = params.tile_row(sequence, tokens.tile, kv_head * group);
    for (int head = 0; head < group; head += 8) {
      constexpr int kRowWords = kTileRows / 2;
      write_weights<T, true>(
          thread, params, kv_head, head, tokens, keys,
          {static_cast<std::uint32_t*>(params.weights) + (row + head) * kRowWords, kRowWords,
           params.tile_max + row + head, params.tile_sum + row + head});
    }
  }
};

template <class Launcher>
LaunchError launch_rebuild(const RankAttention& params, const Launcher& launcher) {
  if (LaunchError error = check_rank_attention(params); !error.empty()) {
    return error;
  }
  return with_rank_source<&RankAttention::key_codes>(params, [&](auto type, auto source) {
    return with_number<16, 24, 32, 48, 64>(params.keys.pairs.num_pairs, [&](auto pairs) {
      constexpr int kPairTiles = decltype(pairs)::value / 8;
      using Instance = RebuildScoresKernel<decltype(type), kPairTiles, decltype(source)>;
      const int warps = launcher.threads(Instance::kThreads) / 32;
      return launcher.template run<Instance>(
          params, {divide_up(params.max_tiles, warps), params.num_kv_heads, params.num_sequences},
          32 * warps, RebuildShared<kPairTiles, decltype(source)>::bytes(warps));
    });
  });
}

}  // namespace kvc
