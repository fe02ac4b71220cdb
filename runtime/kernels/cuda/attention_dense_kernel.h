// Grid: (part of the tokens, KV head, sequence). Every warp walks over its own tiles of 32 tokens, every so
// manyeth of the part's, with a ring of two in shared memory and a softmax of its own; at the end the warps'
// softmaxes are combined. No barrier of the block before that.
#pragma once

#include "runtime/kernels/cuda/attention_dense_shared.h"
#include "runtime/kernels/cuda/attention_dense_source.h"
#include "runtime/kernels/cuda/attention_dense_values.h"
#include "runtime/kernels/cuda/attention_warps.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// All warps' sums, times what fused layers' values are, to the partials.
template <int kHeadDim, int kQueryTiles, int kSources, bool kCodes, class Thread>
KVC_DEVICE void write_partials(Thread& thread, const DenseAttention& params,
                               const WarpSoftmax<kQueryTiles>& softmax,
                               const ValueSums<kHeadDim, kQueryTiles> (&sums)[kSources]) {
  const int group = params.num_heads / params.num_kv_heads, kv_head = thread.block_y();
  merge_warps<kCodes>(
      thread, group, softmax, sums,
      [&](int head, int channel, const SoftmaxState& total, const float(&output)[kSources]) {
        float value = 0;
        KVC_UNROLL
        for (int source = 0; source < kSources; ++source) {
          const float* factor = params.rows[source].value_factor;
          value +=
              output[source] * (factor == nullptr ? 1.0f : factor[kv_head * kHeadDim + channel]);
        }
        write_partial(params.partials,
                      params.partials.row(thread.block_z(), thread.block_x(), params.num_heads,
                                          kv_head * group + head),
                      kHeadDim, channel, total, value);
      });
}

// Two warps, so that a multiprocessor has three blocks, one of which begins or ends while the others read; four where unpacking
// takes the time, or where memory for one block is all there is.
template <class T, int kHeadDim, int kQueryTiles, int kSources, bool kCodes>
struct DenseAttentionKernel : Kernel<DenseAttention, kSources == 2 || kCodes ? 128 : 64, 1> {
  static constexpr const char* kName = kSources == 2 ? "fused_attention" : "dense_attention";

  template <class Thread>
  static KVC_DEVICE void run(const DenseAttention& params, Thread& thread) {
    using Shared = DenseShared<kHeadDim, kQueryTiles, kSources, kCodes>;
    const int warps = thread.count() / 32, pairs = distance_pairs<kCodes>(params);
    const PartRange range = split_rows(params, thread.block_z(), kTileRows, thread.block_x());
    const int ring_byte = Shared::rings(pairs) + thread.warp() * Shared::warp_bytes(pairs);
    std::uint8_t* ring = thread.shared() + ring_byte;
    const int last_tile = range.first < range.last ? (range.last + kTileRows - 1) / kTileRows : 0;
    const auto start = [&](int tile, int stage) {
      if (tile < last_tile) {
        std::uint8_t* const tiles = ring + stage * Shared::stage_bytes(pairs);
        KVC_UNROLL
        for (int source = 0; source < kSources; ++source) {
          std::uint8_t* to = tiles + 2 * source * Shared::kTileBytes;
          copy_tile<kHeadDim, kCodes>(thread, params.rows[source].key, tile, range.last, to);
          copy_tile<kHeadDim, kCodes>(thread, params.rows[source].value, tile, range.last,
                                      to + Shared::kTileBytes);
        }
        if (pairs > 0) {
          const std::int64_t at =
              static_cast<std::int64_t>(params.first_position + tile * kTileRows) * pairs;
          copy_angles(thread, params.raw_keys.rope.cos + at, params.raw_keys.rope.sin + at, pairs,
                      tiles + Shared::kTilesBytes);
        }
      }
      thread.commit();
    };
    const int first_tile = range.first / kTileRows + thread.warp();
    start(first_tile, 0);
    QueryFragments<kHeadDim, kQueryTiles> query[kSources];  // of numbers
    if constexpr (kCodes) {
      if (last_tile > 0) {  // the same for all of the block
        for (int source = 0; source < kSources; ++source) {
          load_query_slots<T, kHeadDim, kQueryTiles>(
              thread, params, params.rows[source],
              query_slots<kHeadDim, kQueryTiles>(thread, source));
        }
        if (pairs > 0) {
          load_distances(thread, params.raw_keys.rope, params.first_position + range.last - 1,
                         reinterpret_cast<float*>(thread.shared() + Shared::kDistances));
        }
        thread.sync();
      }
    } else {
      KVC_UNROLL
      for (int source = 0; source < kSources; ++source) {
        load_query<T>(thread, params, params.rows[source].key_factor, query[source]);
      }
    }
    WarpSoftmax<kQueryTiles> softmax;
    ValueSums<kHeadDim, kQueryTiles> sums[kSources] = {};
    int stage = 0;
    for (int tile = first_tile; tile < last_tile; tile += warps) {
      start(tile + warps, stage ^ 1);
      thread.template wait<1>();
      thread.sync_warp();
      const std::uint8_t* tiles = ring + stage * Shared::stage_bytes(pairs);
      ScoreTile<kQueryTiles> scores = {};
      TileAngles angles;
      if constexpr (kCodes) {
        angles = tile_angles(thread, params, pairs, Shared::kDistances,
                             ring_byte + stage * Shared::stage_bytes(pairs) + Shared::kTilesBytes,
                             tile, range.last);
      }
      KVC_UNROLL
      for (int source = 0; source < kSources; ++source) {
        const std::uint8_t* keys = tiles + 2 * source * Shared::kTileBytes;
        if constexpr (kCodes) {
          add_code_scores<T, kHeadDim>(thread, params.rows[source], params.raw_keys, angles, keys,
                                       query_slots<kHeadDim, kQueryTiles>(thread, source), scores);
        } else {
          add_scores(thread, reinterpret_cast<const T*>(keys), query[source], scores);
        }
      }
      WeightFragments<kQueryTiles> weights;
      const RaiseFactors<kQueryTiles> raised =
          soften<T>(thread, scores, params.scale, params.softcap, range.first - tile * kTileRows,
                    range.last - tile * kTileRows, softmax, weights);
      KVC_UNROLL
      for (int source = 0; source < kSources; ++source) {
        const std::uint8_t* values = tiles + (2 * source + 1) * Shared::kTileBytes;
        if constexpr (kCodes) {
          add_code_values<T>(thread, params.rows[source].value, values, weights, raised,
                             sums[source]);
        } else {
          add_values(thread, reinterpret_cast<const T*>(values), weights, raised, sums[source]);
        }
      }
      thread.sync_warp();  // the stage is free
      stage ^= 1;
    }
    finish_sums(thread, softmax);
    write_partials<kHeadDim, kQueryTiles, kSources, kCodes>(thread, params, softmax, sums);
  }
};

// With as many warps, up to the kernel's, as shared memory takes.
template <class T, int kHeadDim, int kQueryTiles, int kSources, bool kCodes, class Launcher>
LaunchError launch_dense_instance(const DenseAttention& params, const Launcher& launcher) {
  using Instance = DenseAttentionKernel<T, kHeadDim, kQueryTiles, kSources, kCodes>;
  using Shared = DenseShared<kHeadDim, kQueryTiles, kSources, kCodes>;
  const int pairs = distance_pairs<kCodes>(params);
  int warps = launcher.threads(Instance::kThreads) / 32;
  while (warps > 1 && Shared::bytes(warps, pairs) > launcher.shared_bytes()) {
    --warps;
  }
  return launcher.template run<Instance>(
      params, {params.partials.num_parts, params.num_kv_heads, params.num_sequences}, 32 * warps,
      Shared::bytes(warps, pairs));
}

template <int kSources, bool kCodes, class Launcher>
LaunchError launch_dense(const DenseAttention& params, const Launcher& launcher) {
  if (LaunchError error = check_dense_attention(params, kSources); !error.empty()) {
    return error;
  }
  const bool many_heads = params.num_heads / params.num_kv_heads > 8;
  return with_type(params.element, [&](auto type) {
    return with_number<32, 64, 128, 256>(params.head_dim, [&](auto width) -> LaunchError {
      using T = decltype(type);
      constexpr int kWidth = decltype(width)::value;
      if constexpr (kWidth * kSources <= 128) {
        if (many_heads) {
          return launch_dense_instance<T, kWidth, 2, kSources, kCodes>(params, launcher);
        }
      }
      if constexpr (kWidth < 256 || kSources == 1) {
        return launch_dense_instance<T, kWidth, 1, kSources, kCodes>(params, launcher);
      }
      return {};  // check_dense_attention() refuses it
    });
  });
}

template <bool kCodes, class Launcher>
LaunchError launch_sources(const DenseAttention& params, const Launcher& launcher) {
  return params.num_sources == 2 ? launch_dense<2, kCodes>(params, launcher)
                                 : launch_dense<1, kCodes>(params, launcher);
}

template <class Launcher>
LaunchError launch_kernels(const NumberAttention& params, const Launcher& launcher) {
  return needs_decoding(params.rows[0].key) ? "dense attention: codes, expected numbers of 16 bits"
                                            : launch_sources<false>(params, launcher);
}

template <class Launcher>
LaunchError launch_kernels(const DenseAttention& params, const Launcher& launcher) {
  return needs_decoding(params.rows[0].key) ? launch_sources<true>(params, launcher)
                                            : launch_sources<false>(params, launcher);
}

}  // namespace kvc
