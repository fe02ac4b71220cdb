// Grid: (part of the tokens, KV head, sequence). Every warp walks over its own tiles of 32 tokens, every so manyeth of the
// part's, with a ring of two in shared memory and, where it sums values, a softmax of its own; at the end the warps'
// softmaxes are combined. No barrier of the block between what all tiles share and that.
#pragma once

#include "runtime/kernels/cuda/attention_codes_keys.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// A tile's bytes, 4-byte aligned, to the warp's shared memory.
template <class Thread>
KVC_DEVICE void copy_bytes(Thread& thread, const std::uint8_t* from, int bytes, std::uint8_t* to) {
  int done = 0;
  if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    done = bytes / 16 * 16;
    for (int byte = 16 * thread.lane(); byte < done; byte += 16 * 32) {
      thread.template copy_async<16>(to + byte, from + byte, true);
    }
  }
  for (int byte = done + 4 * thread.lane(); byte < bytes; byte += 4 * 32) {
    thread.template copy_async<4>(to + byte, from + byte, true);
  }
}

// The tiles of a block's KV head.
struct HeadTiles {
  DeviceTiles keys, values;
};

// Sums of weight * gain * level: rows of products are the coefficients of two groups.
template <int kPairs, int kQueryTiles>
struct LevelSums {
  float c[kPairs][kQueryTiles][4];
};

template <int kPairs, int kQueryTiles, class Thread>
KVC_DEVICE void add_levels(Thread& thread, const CodedShared& shared, const DeviceTiles& tiles,
                           int num_groups, const std::uint8_t* values,
                           const RaiseFactors<kQueryTiles>& raised,
                           WeightFragments<kQueryTiles>& weights,
                           LevelSums<kPairs, kQueryTiles>& sums) {
  const int lane = thread.lane();
  if (tiles.gain) {
    const auto* gains =
        reinterpret_cast<const std::uint32_t*>(values + tiles.code_bytes) + 2 * (lane % 4);
    const std::uint32_t first = gains[0], second = gains[1];
    KVC_UNROLL
    for (int j = 0; j < 4; ++j) {  // tokens j and 4 + j of the lane's eight
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        std::uint32_t& pair = weights.b[j / 2][n][j % 2];
        pair = pack_pair<Float16>(low_of_pair<Float16>(pair) * gain_of_token(first, j),
                                  high_of_pair<Float16>(pair) * gain_of_token(second, j));
      }
    }
  }
  const auto* groups = reinterpret_cast<const CodeGroup*>(thread.shared()) + shared.key_groups;
  KVC_UNROLL
  for (int pair = 0; pair < kPairs; ++pair) {
    if (2 * pair < num_groups) {
      std::uint32_t levels[2][4];
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        const CodeGroup group = groups[2 * pair + i];
        const std::uint8_t* codes = values + group.byte + 4 * group.bits * (lane / 4);
        unpack_levels(group.bits, CoefficientPlanes{codes, lane % 4}, levels[i]);
      }
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          sums.c[pair][n][i] *= raised.factor[n][i % 2];
        }
        KVC_UNROLL
        for (int k = 0; k < 2; ++k) {
          const std::uint32_t a[4] = {levels[0][2 * k], levels[1][2 * k], levels[0][2 * k + 1],
                                      levels[1][2 * k + 1]};
          thread.multiply_add(Float16{}, sums.c[pair][n], a, weights.b[k][n]);
        }
      }
    }
  }
}

// All warps' sums, below one maximum, to the partials.
template <int kPairs, int kQueryTiles, class Thread>
KVC_DEVICE void merge_levels(Thread& thread, const CodedAttention& params,
                             const WarpSoftmax<kQueryTiles>& softmax,
                             const LevelSums<kPairs, kQueryTiles>& sums) {
  constexpr int kHeads = 8 * kQueryTiles, kRows = 16 * kPairs;
  auto* states = reinterpret_cast<SoftmaxState*>(thread.shared());  // [warps, heads]
  const int warps = thread.count() / 32, lane = thread.lane();
  auto* outputs = reinterpret_cast<float*>(states + warps * kHeads);  // [warps, heads, kRows]
  thread.sync();
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int head = 8 * n + 2 * (lane % 4) + i % 2;
      if (lane < 4 && i < 2) {
        states[thread.warp() * kHeads + head] = softmax.state[n][i % 2];
      }
      float* output = outputs + (thread.warp() * kHeads + head) * kRows + lane / 4 + 8 * (i / 2);
      KVC_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        output[16 * pair] = sums.c[pair][n][i];
      }
    }
  }
  thread.sync();
  const int kv_head = thread.block_y(), group = params.num_heads / params.num_kv_heads;
  const DeviceTiles tiles = params.values[kv_head];
  const std::int64_t first_row =
      params.partials.row(thread.block_z(), thread.block_x(), params.num_heads, kv_head * group);
  for (int i = thread.index(); i < group * kRows; i += thread.count()) {
    const int head = i / kRows, row = i % kRows;
    const CodeGroup of = code_group(tiles, row / kGroupCoefficients);
    SoftmaxState total;
    float output = 0;
    for (int warp = 0; warp < warps; ++warp) {
      const SoftmaxFactors factors = combine_softmax(total, states[warp * kHeads + head]);
      output =
          factors.total * output + factors.part * outputs[(warp * kHeads + head) * kRows + row];
    }
    if (row % kGroupCoefficients < of.count) {
      params.partials
          .output[(first_row + head) * params.sums_width + of.first + row % kGroupCoefficients] =
          output;
    }
    if (row == 0) {
      params.partials.max[first_row + head] = total.max;
      params.partials.sum[first_row + head] = total.sum;
    }
  }
  const int behind = params.sums_width - tiles.num_coefficients;
  for (int i = thread.index(); i < group * behind; i += thread.count()) {
    params.partials.output[(first_row + i / behind) * params.sums_width + tiles.num_coefficients +
                           i % behind] = 0;
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
struct CodedAttentionKernel : Kernel<CodedAttention, 128, 2> {
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
    const DeviceTiles keys = params.keys[kv_head];
    DeviceTiles values;
    if constexpr (kSums) {
      values = params.values[kv_head];
    }
    const auto start = [&](int tile, int stage) {
      if (tile < last_tile) {
        std::uint8_t* to = ring + stage * shared.stage_bytes();
        if (tile_bytes(keys) > 0) {
          copy_bytes(thread, tile_at(keys, sequence, tile), tile_bytes(keys), to);
        }
        to += shared.key_bytes;
        if (kSums && tile_bytes(values) > 0) {
          copy_bytes(thread, tile_at(values, sequence, tile), tile_bytes(values), to);
        }
        to += shared.value_bytes;
        const std::int64_t angles =
            static_cast<std::int64_t>(params.first_position + tile * kTileRows) * params.num_angles;
        for (int i = thread.lane(); i < shared.num_angles; i += 32) {
          thread.template copy_async<4>(to + 4 * i, params.cos + angles + i, true);
          thread.template copy_async<4>(to + 4 * (shared.num_angles + i), params.sin + angles + i,
                                        true);
        }
      }
      thread.commit();
    };
    start(first_tile, 0);
    if (last_tile > 0) {  // the same for all of the block
      prepare_block(thread, params, shared);
    }
    const int key_groups = num_code_groups(keys);
    const int value_groups = kSums ? num_code_groups(values) : 0;
    WarpSoftmax<kQueryTiles> softmax;
    LevelSums<kSums ? kPairs : 1, kQueryTiles> sums = {};
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
        add_levels(thread, shared, values, value_groups, coded.values, raised, weights, sums);
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
      finish_sums(thread, softmax);
      merge_levels(thread, params, softmax, sums);
    }
  }
};

// With as many warps, up to the kernel's, as shared memory takes.
template <int kPairs, int kQueryTiles, class Launcher>
LaunchError launch_coded_instance(const CodedAttention& params, const Launcher& launcher) {
  using Instance = CodedAttentionKernel<kPairs, kQueryTiles>;
  const CodedShared shared(params, kQueryTiles);
  const auto bytes = [&](int warps) {
    const int merge = warps * 8 * kQueryTiles * (16 * kPairs + 2) * 4, own = shared.bytes(warps);
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
