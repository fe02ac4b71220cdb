// Grid: (part of the tokens, KV head, sequence). Every warp walks over its own tiles of 32 tokens, every so manyeth of the
// part's, with a ring of two in shared memory and, where it sums values, a softmax of its own; at the end the warps'
// softmaxes are combined. No barrier of the block between what all tiles share and that.
#pragma once

#include "runtime/kernels/cuda/attention_codes_values.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// A tile's bytes, 4-byte aligned, to the warp's shared memory.
template <class Thread>
KVC_DEVICE void copy_bytes(Thread& thread, const std::uint8_t* from, int bytes, std::uint8_t* to) {
  const int lane = thread.lane();
  const int whole = reinterpret_cast<std::uintptr_t>(from) % 16 == 0 ? bytes / 16 * 16 : 0;
  const std::uint8_t* source = from + 16 * lane;
  std::uint8_t* target = to + 16 * lane;
  KVC_NO_UNROLL
  for (int left = whole - 16 * lane; left > 0;
       left -= 4 * 512, source += 4 * 512, target += 4 * 512) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (512 * i < left) {
        thread.template copy_async<16>(target + 512 * i, source + 512 * i, true);
      }
    }
  }
  KVC_NO_UNROLL
  for (int byte = whole + 4 * lane; byte < bytes; byte += 4 * 32) {
    thread.template copy_async<4>(to + byte, from + byte, true);
  }
}

// A tile's weights below its own maximum, for the launch that sums values.
template <int kQueryTiles, class Thread>
KVC_DEVICE void write_tile_weights(Thread& thread, const CodedAttention& params, int tile,
                                   const WarpSoftmax<kQueryTiles>& softmax,
                                   const WeightFragments<kQueryTiles>& weights) {
  const int lane = thread.lane(), group = params.num_heads / params.num_kv_heads;
  const std::int64_t row =
      (static_cast<std::int64_t>(thread.block_z()) * params.max_tiles + tile) * params.num_heads +
      thread.block_y() * group;
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    if (8 * n + lane / 4 < group) {
      auto* to = static_cast<std::uint16_t*>(params.weights) +
                 (row + 8 * n + lane / 4) * kTileRows + 8 * (lane % 4);
      KVC_UNROLL
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t pair = weights.b[j / 2][n][j % 2];
        to[j] = static_cast<std::uint16_t>(pair);
        to[j + 4] = static_cast<std::uint16_t>(pair >> 16);
      }
    }
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int head = 8 * n + 2 * lane + i;
      if (lane < 4 && head < group) {
        params.tile_max[row + head] = softmax.state[n][i].max;
        params.tile_sum[row + head] = softmax.state[n][i].sum;
      }
    }
  }
}

// kPairs: of groups of values, at most; 0: weights alone.
template <int kPairs, int kQueryTiles>
struct CodedAttentionKernel
    : Kernel<CodedAttention, 128, (kPairs <= 12 && kQueryTiles == 1 ? 3 : 2)> {
  static constexpr const char* kName = "coded_attention";
  static constexpr bool kSums = kPairs > 0;

  template <class Thread>
  static KVC_DEVICE void run(const CodedAttention& params, Thread& thread) {
    const CodedShared shared(params, kQueryTiles);
    const int warps = thread.count() / 32, kv_head = thread.block_y(), sequence = thread.block_z();
    const PartRange range = split_rows(params, sequence, kTileRows, thread.block_x());
    const int last_tile = range.first < range.last ? (range.last + kTileRows - 1) / kTileRows : 0;
    const int first_tile = range.first / kTileRows + thread.warp();
    std::uint8_t* ring = thread.shared() + shared.rings() +
                         thread.warp() * CodedShared::kStages * shared.stage_bytes();
    const LoadedRows first_rows = load_rows(thread, params, thread.index());
    std::int32_t angles_of_means[2];
    mean_angles(thread, params, angles_of_means);
    const DeviceTiles keys = params.keys[kv_head];
    DeviceTiles values;
    if constexpr (kSums) {
      values = params.values[kv_head];
    }
    TileWalk key_walk = walk_from(keys, first_tile), value_walk = walk_from(values, first_tile);
    const auto start = [&](int tile, int stage) {  // tile: `warps` behind the last one
      if (tile < last_tile) {
        std::uint8_t* to = ring + stage * shared.stage_bytes();
        if (tile_bytes(keys) > 0) {
          copy_bytes(thread, tile_at(keys, sequence, key_walk), tile_bytes(keys), to);
          skip_tiles(key_walk, keys, warps);
        }
        to += shared.key_bytes;
        if (kSums && tile_bytes(values) > 0) {
          copy_bytes(thread, tile_at(values, sequence, value_walk), tile_bytes(values), to);
          skip_tiles(value_walk, values, warps);
        }
        to += shared.value_bytes;
        const std::int64_t angles =
            static_cast<std::int64_t>(params.first_position + tile * kTileRows) * params.num_angles;
        copy_angles(thread, params.cos + angles, params.sin + angles, shared.num_angles, to);
      }
      thread.commit();
    };
    start(first_tile, 0);
    if (kSums && thread.lane() < CodedShared::kStages * CodedShared::kZeros / 4) {
      const int stage = 4 * thread.lane() / CodedShared::kZeros;
      *shared_at<std::uint32_t>(ring, stage * shared.stage_bytes() + shared.key_bytes +
                                          shared.zeros() +
                                          4 * thread.lane() % CodedShared::kZeros) = 0;
    }
    if (last_tile > 0) {  // the same for all of the block
      prepare_block(thread, params, keys, values, shared, first_rows, angles_of_means);
    }
    const int key_groups = num_code_groups(keys);
    const int value_groups = kSums ? num_code_groups(values) : 0;
    WarpSoftmax<kQueryTiles> softmax;
    CodeSums<kSums ? kPairs : 1, kQueryTiles> sums = {};
    int stage = 0;
    for (int tile = first_tile; tile < last_tile; tile += warps) {
      start(tile + warps, stage ^ 1);
      thread.template wait<1>();
      thread.sync_warp();
      const std::uint8_t* own = ring + stage * shared.stage_bytes();
      const CodedTile coded{
          own, own + shared.key_bytes,
          reinterpret_cast<const float*>(own + shared.key_bytes + shared.value_bytes)};
      ScoreTile<kQueryTiles> scores = {};
      score_codes(thread, shared, keys, key_groups, coded, scores);
      WeightFragments<kQueryTiles> weights;
      const int first = range.first - tile * kTileRows, last = range.last - tile * kTileRows;
      if constexpr (kSums) {
        const RaiseFactors<kQueryTiles> raised = soften<Float16, CodedTokens>(
            thread, scores, params.scale, params.softcap, first, last, softmax, weights);
        if (values.gain) {
          multiply_gains(thread, shared, coded.values + values.code_bytes, weights);
        }
        add_codes(thread, shared, value_groups, coded.values, raised, weights, sums);
      } else {
        WarpSoftmax<kQueryTiles> of_tile;
        soften<Float16, CodedTokens>(thread, scores, params.scale, params.softcap, first, last,
                                     of_tile, weights);
        finish_sums(thread, of_tile);
        write_tile_weights(thread, params, tile, of_tile, weights);
      }
      thread.sync_warp();  // the stage is free
      stage ^= 1;
    }
    if constexpr (kSums) {
      if (last_tile > 0) {
        finish_sums(thread, softmax);
        merge_codes(thread, params, values, shared, softmax, sums);
      } else {
        write_no_tokens(thread, params);
      }
    }
  }
};

// With as many warps, up to the kernel's, as shared memory takes.
template <int kPairs, int kQueryTiles, class Launcher>
LaunchError launch_coded_instance(const CodedAttention& params, const Launcher& launcher) {
  using Instance = CodedAttentionKernel<kPairs, kQueryTiles>;
  const CodedShared shared(params, kQueryTiles);
  const auto bytes = [&](int warps) {
    const int own = shared.bytes(warps),
              merge = shared.rings() + merge_codes_bytes(shared, kPairs, warps);
    return own > merge ? own : merge;
  };
  int warps = launcher.threads(Instance::kThreads) / 32;
  while (warps > 1 && bytes(warps) > launcher.shared_bytes()) {
    warps /= 2;
  }
  return launcher.template run<Instance>(
      params, {params.partials.num_parts, params.num_kv_heads, params.num_sequences}, 32 * warps,
      bytes(warps));
}

template <class Launcher>
LaunchError launch_kernels(const CodedAttention& params, const Launcher& launcher) {
  if (LaunchError error = check_coded_attention(params); !error.empty()) {
    return error;
  }
  const bool many_heads = params.num_heads / params.num_kv_heads > 8;
  const int pairs = params.values == nullptr ? 0 : most_code_groups(params.head_dim) / 2;
  return with_number<0, 6, 8, 12, 20>(pairs, [&](auto of_groups) -> LaunchError {
    constexpr int kPairs = decltype(of_groups)::value;
    if constexpr (kPairs <= 12) {
      if (many_heads) {
        return launch_coded_instance<kPairs, 2>(params, launcher);
      }
    }
    return launch_coded_instance<kPairs, 1>(params, launcher);
  });
}

}  // namespace kvc
