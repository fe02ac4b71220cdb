// Grid: (part of the tokens; KV heads that share a block; sequence). kOnePassWarps warps. For the 8 / heads_at_once tiles
// of 32 tokens that a block has at a time, each belongs to heads_at_once warps, each of which rebuilds other KV heads'
// keys. The projection passes through a ring; latents of keys are copied with the first heads' chunks and stay for the others.
//
// Values are a group of tiles behind keys: while keys of the next tokens are rebuilt, every warp sums its own latents of the
// tokens before, 16 at a time in a buffer of its own, so that memory is read all the while. On sm_90, at ranks 384 and
// 576 and 32 query heads on 8 KV heads of 128 channels, a block has 128 tokens, 4 KV heads and 191 KB, is alone on its
// multiprocessor, and moves 10 KB a token: 3.8 of latents, 6.1 of projections. A thread holds 128 numbers of a key tile
// and 40 of sums (80 beside fewer rotary pairs), out of 255 registers.
#pragma once

#include "runtime/kernels/cuda/attention_one_pass_sums.h"
#include "runtime/kernels/cuda/attention_tile_scores.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// Steps go through groups of tokens, in these rounds of KV heads, in these chunks of the key projection.
struct OnePassStep {
  int group = 0, round = 0, chunk = 0, in_group = 0;

  KVC_HOST_DEVICE void next(const OnePassLayout& at) {
    if (++in_group == at.group_steps) {
      ++group;
      in_group = round = chunk = 0;
    } else if (++chunk == at.round_steps) {
      ++round;
      chunk = 0;
    }
  }
};

// What a block has to do, in shared memory: registers are scarce.
struct OnePassWork {
  OnePassTokens tokens;
  int sequence, first_kv_head, kv_heads;
};

// A block's view of its work.
template <class T, int kPairTiles, int kQueryTiles, class Thread>
struct OnePassBlock {
  Thread& thread;
  const RankAttention& params;
  const OnePassLayout& at;
  const OnePassWork& work;

  KVC_DEVICE int num_heads() const {
    return work.kv_heads * (params.num_heads / params.num_kv_heads);
  }
  KVC_DEVICE int first_tile(int group) const {
    return (work.tokens.first_group + group) * at.tiles;
  }
  KVC_DEVICE T* keys() const { return reinterpret_cast<T*>(thread.shared()); }
  KVC_DEVICE T* values() const {
    return reinterpret_cast<T*>(thread.shared() + at.values) + thread.warp() * 16 * at.value_stride;
  }
  KVC_DEVICE std::uint8_t* stage(int index, int slot) const {
    return thread.shared() + at.ring + index * at.stage_bytes + slot * kProjectionBytes<kPairTiles>;
  }
  KVC_DEVICE std::uint32_t* words(int group, int tile) const {
    return reinterpret_cast<std::uint32_t*>(thread.shared() + at.weights +
                                            group % 2 * at.weight_bytes) +
           tile * 8 * kQueryTiles * (kChunkStride / 2);
  }
  KVC_DEVICE OnePassMaxima maxima() const {
    return one_pass_maxima(at, at.tiles, 8 * kQueryTiles, thread.shared());
  }

  KVC_DEVICE void start(const OnePassStep& step, int to) const {
    if (step.group < work.tokens.groups && step.chunk * kRankChunk < params.key_rank) {
      for (int slot = 0; slot < at.at_once; ++slot) {
        const int kv_head = step.round * at.at_once + slot;
        if (kv_head < work.kv_heads) {
          copy_projection<kPairTiles>(
              thread, key_projection<T>(params, work.sequence, work.first_kv_head + kv_head),
              step.chunk, stage(to, slot));
        }
      }
      if (step.round == 0) {
        copy_key_latents(step.group, step.chunk);
      }
    }
    thread.commit();
  }
  // 32 latents of all of the group's tokens; zeros where there are none.
  KVC_DEVICE void copy_key_latents(int group, int chunk) const {
    const int rank = chunk * kRankChunk + 8 * (thread.index() % 4);
    const int first = first_tile(group) * kTileRows;
    KVC_NO_UNROLL
    for (int token = thread.index() / 4; token < at.tiles * kTileRows; token += 8 * kOnePassWarps) {
      const bool exists = work.tokens.has_row(first + token) && rank < params.key_rank;
      const int row = exists ? first + token : work.tokens.range.first;
      thread.template copy_async<16>(
          keys() + token * at.key_stride + rank,
          latents_at(params, work.sequence, row, params.key_column + (exists ? rank : 0)), exists);
    }
  }
  // The warp's latents of 16 tokens of a group, two pieces a tile; zeros likewise.
  KVC_DEVICE void copy_piece(int group, int piece) const {
    const int token = thread.lane() / 2, first = thread.warp() * 16 * at.rank_tiles;
    const int row = first_tile(group) * kTileRows + 16 * piece + token;
    const bool exists = work.tokens.has_row(row);
    const std::uint16_t* from = latents_at(
        params, work.sequence, exists ? row : work.tokens.range.first, params.value_column);
    KVC_NO_UNROLL
    for (int i = 0; i < at.rank_tiles; ++i) {
      const int in_warp = 16 * i + 8 * (thread.lane() % 2), rank = first + in_warp;
      const bool has_rank = exists && rank < params.value_rank;
      thread.template copy_async<16>(values() + token * at.value_stride + in_warp,
                                     from + (has_rank ? rank : 0), has_rank);
    }
  }
  // For the group before, in every other step.
  KVC_DEVICE void sum_values(const OnePassStep& step, RankSums<kQueryTiles>& sums) const {
    const int next = step.in_group / 2, group = step.group - 1, tile = (next - 1) / 2;
    if (group < 0 || step.in_group % 2 != 0 || next < 1 || next > 2 * at.tiles) {
      return;
    }
    const OnePassMaxima of = maxima();
    if (work.tokens.has(first_tile(group) + tile)) {
      add_ranks<T>(thread, values(), at, words(group, tile) + 8 * ((next - 1) % 2),
                   of.factor + tile * of.heads, num_heads(), sums);
    }
    thread.sync_warp();  // the buffer is free
    if (next < 2 * at.tiles) {
      copy_piece(group, next);
    }
  }
  KVC_DEVICE void rebuild_keys(const OnePassStep& step, int from,
                               KeyTile<kPairTiles>& rebuilt) const {
    const int in_group = thread.warp() % at.tiles, slot = thread.warp() / at.tiles;
    const int kv_head = step.round * at.at_once + slot;
    if (step.chunk == 0) {
      rebuilt = {};
    }
    if (kv_head >= work.kv_heads || !work.tokens.has(first_tile(step.group) + in_group)) {
      return;
    }
    if (step.chunk * kRankChunk < params.key_rank) {
      add_products<T, kPairTiles, true>(
          thread, keys() + in_group * kTileRows * at.key_stride + step.chunk * kRankChunk,
          at.key_stride, reinterpret_cast<const T*>(stage(from, slot)), rebuilt);
    }
    if (step.chunk == at.round_steps - 1) {
      finish(step.group, kv_head, rebuilt);
    }
  }
  // Keys of the warp's tile and KV head become weights.
  KVC_DEVICE void finish(int group, int kv_head, KeyTile<kPairTiles>& rebuilt) const {
    const int in_group = thread.warp() % at.tiles, tile = first_tile(group) + in_group;
    const TokenTile own{work.sequence, tile, work.tokens.range.first - tile * kTileRows,
                        work.tokens.range.last - tile * kTileRows};
    const float gains[2][2] = {{1, 1}, {1, 1}};
    finish_keys(thread, params, work.first_kv_head + kv_head, own, gains, rebuilt);
    const int heads = params.num_heads / params.num_kv_heads;
    const OnePassMaxima to = maxima();
    for (int head = 0; head < heads; head += 8) {
      const int row = kv_head * heads + head, in_tiles = in_group * to.heads + row;
      write_weights<T, false>(thread, params, work.first_kv_head + kv_head, head, own, rebuilt,
                              {words(group, in_group) + row * (kChunkStride / 2), kChunkStride / 2,
                               to.max + in_tiles, to.sum + in_tiles});
    }
  }
  KVC_DEVICE void end_group(int group, RankSums<kQueryTiles>& sums) const {
    const OnePassMaxima of = maxima();
    thread.sync();  // weights of the group are there, and those of the one before were read
    if (thread.index() < num_heads()) {
      raise_group(work.tokens, first_tile(group), thread.index(), of);
    }
    thread.sync();
    raise_sums(of.raise, num_heads(), thread.lane(), sums);
    copy_piece(group, 0);
  }
  // Behind the last group there is one more, of values alone.
  KVC_DEVICE bool is_done(const OnePassStep& step) const {
    const int groups = work.tokens.groups;
    return step.group >= groups &&
           (groups == 0 || step.group > groups || step.in_group > 4 * at.tiles);
  }
  KVC_DEVICE void write(const RankSums<kQueryTiles>& sums) const {
    const int lane = thread.lane(), first_rank = thread.warp() * 16 * at.rank_tiles;
    const int group = params.num_heads / params.num_kv_heads;
    const std::int64_t row = params.partials.row(work.sequence, thread.block_x(), params.num_heads,
                                                 work.first_kv_head * group);
    if (thread.index() < num_heads()) {
      params.partials.max[row + thread.index()] = maxima().all_max[thread.index()];
      params.partials.sum[row + thread.index()] = maxima().all_sum[thread.index()];
    }
    KVC_UNROLL
    for (int m = 0; m < kOnePassRankTiles; ++m) {
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int head = 8 * n + 2 * (lane % 4) + i % 2;
          const int rank = first_rank + 16 * m + lane / 4 + 8 * (i / 2);
          if (m < at.rank_tiles && head < num_heads() && rank < params.sums_width) {
            params.partials.output[(row + head) * params.sums_width + rank] = sums.c[m][n][i];
          }
        }
      }
    }
  }
};

template <class T, int kPairTiles, int kQueryTiles>
struct OnePassAttentionKernel : Kernel<OnePassAttention, 32 * kOnePassWarps, 1> {
  static constexpr const char* kName = "one_pass_attention";

  template <class Thread>
  static KVC_DEVICE void run(const OnePassAttention& launch, Thread& thread) {
#if !defined(__CUDA_ARCH__) || \
    __CUDA_ARCH__ < 1200  // whose blocks have less than kOnePassLeastShared
    const RankAttention& params = launch.attention;
    const OnePassLayout& at = launch.at;
    OnePassWork& work = *reinterpret_cast<OnePassWork*>(thread.shared() + at.work);
    if (thread.index() == 0) {
      const int first = thread.block_y() * at.kv_heads, left = params.num_kv_heads - first;
      work = {one_pass_tokens(params, at, thread.block_z(), thread.block_x()), thread.block_z(),
              first, left < at.kv_heads ? left : at.kv_heads};
    }
    thread.sync();
    const OnePassBlock<T, kPairTiles, kQueryTiles, Thread> block{thread, params, at, work};
    if (thread.index() < block.num_heads()) {  // each thread's own, until the block's end
      block.maxima().all_max[thread.index()] = negative_infinity();
      block.maxima().all_sum[thread.index()] = 0;
    }
    RankSums<kQueryTiles> sums = {};
    KeyTile<kPairTiles> keys = {};
    OnePassStep step, ahead;
    block.start(ahead, 0);
    ahead.next(at);
    block.start(ahead, 1);
    int stage = 0;
    while (!block.is_done(step)) {
      thread.template wait<1>();
      thread.sync();  // the chunk is there, and the stage of the one before is free
      block.sum_values(step, sums);
      ahead.next(at);
      block.start(ahead, stage == 0 ? kOnePassStages - 1 : stage - 1);
      if (step.group < work.tokens.groups) {
        block.rebuild_keys(step, stage, keys);
        if (step.in_group == at.group_steps - 1) {
          block.end_group(step.group, sums);
        }
      }
      step.next(at);
      stage = stage + 1 == kOnePassStages ? 0 : stage + 1;
    }
    block.write(sums);
#endif
  }
};

template <class Launcher>
LaunchError launch_one_pass(const RankAttention& params, const Launcher& launcher) {
  if (LaunchError error = check_one_pass_attention(params, launcher.shared_bytes());
      !error.empty()) {
    return error;
  }
  const OnePassAttention attention{params, one_pass_layout(params)};
  return with_type(params.element, [&](auto type) {
    return with_number<16, 32, 48, 64>(params.keys.pairs.num_pairs, [&](auto pairs) {
      return with_number<1, 2, 4>(params.one_pass.query_tiles, [&](auto tiles) -> LaunchError {
        constexpr int kPairTiles = decltype(pairs)::value / 8, kQueryTiles = decltype(tiles)::value;
        if constexpr (kPairTiles < 8 || kQueryTiles < 4) {
          using Instance = OnePassAttentionKernel<decltype(type), kPairTiles, kQueryTiles>;
          return launcher.template run<Instance>(
              attention, {params.partials.num_parts, attention.at.blocks, params.num_sequences},
              Instance::kThreads, attention.at.bytes);
        }
        return {};  // check_one_pass_attention() refuses it
      });
    });
  });
}

}  // namespace kvc
