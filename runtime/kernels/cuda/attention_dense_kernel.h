// Grid: (part of the tokens, KV head, sequence). Every warp walks over its own tiles of 32 tokens, every so
// manyeth of the part's, with a ring of two in shared memory and a softmax of its own; at the end the warps'
// softmaxes are combined. No barrier of the block before that.
#pragma once

#include "runtime/kernels/cuda/attention_dense_source.h"
#include "runtime/kernels/cuda/attention_warps.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

template <int kHeadDim, int kSources, bool kCodes>
struct DenseShared {
  static constexpr int kStages = 2;
  static constexpr int kNumbers = kTileRows * (kHeadDim + kPadding);
  static constexpr int kTileBytes = kCodes ? CodeTileShape<kHeadDim>::kBytes : 2 * kNumbers;
  static constexpr int kStageBytes = 2 * kSources * kTileBytes;  // keys and values
  static constexpr int kWarpBytes = kStages * kStageBytes + (kCodes ? 2 * kNumbers : 0);
  static constexpr int bytes(int warps, int query_tiles) {
    const int merge = merge_bytes(warps, query_tiles, kSources * kHeadDim);
    return warps * kWarpBytes > merge ? warps * kWarpBytes : merge;
  }
};

// All warps' sums, times what fused layers' values are, to the partials.
template <int kHeadDim, int kQueryTiles, int kSources, class Thread>
KVC_DEVICE void write_partials(Thread& thread, const DenseAttention& params,
                               const WarpSoftmax<kQueryTiles>& softmax,
                               const ValueSums<kHeadDim, kQueryTiles> (&sums)[kSources]) {
  const int group = params.num_heads / params.num_kv_heads, kv_head = thread.block_y();
  merge_warps(
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

template <class T, int kHeadDim, int kQueryTiles, int kSources, bool kCodes>
struct DenseAttentionKernel : Kernel<DenseAttention, 128, 1> {
  static constexpr const char* kName = kSources == 2 ? "fused_attention" : "dense_attention";

  template <class Thread>
  static KVC_DEVICE void run(const DenseAttention& params, Thread& thread) {
    using Shared = DenseShared<kHeadDim, kSources, kCodes>;
    const int warps = thread.count() / 32;
    const PartRange range = split_rows(params, thread.block_z(), kTileRows, thread.block_x());
    std::uint8_t* ring = thread.shared() + thread.warp() * Shared::kWarpBytes;
    T* numbers = reinterpret_cast<T*>(ring + Shared::kStages * Shared::kStageBytes);  // of codes
    const int last_tile = range.first < range.last ? (range.last + kTileRows - 1) / kTileRows : 0;
    const auto start = [&](int tile, int stage) {
      if (tile < last_tile) {
        KVC_UNROLL
        for (int source = 0; source < kSources; ++source) {
          std::uint8_t* to = ring + stage * Shared::kStageBytes + 2 * source * Shared::kTileBytes;
          copy_tile<kHeadDim, kCodes>(thread, params.rows[source].key, tile, range.last, to);
          copy_tile<kHeadDim, kCodes>(thread, params.rows[source].value, tile, range.last,
                                      to + Shared::kTileBytes);
        }
      }
      thread.commit();
    };
    const int first_tile = range.first / kTileRows + thread.warp();
    start(first_tile, 0);
    QueryFragments<kHeadDim, kQueryTiles> query[kSources];
    KVC_UNROLL
    for (int source = 0; source < kSources; ++source) {
      load_query<T>(thread, params, params.rows[source].key_factor, query[source]);
    }
    WarpSoftmax<kQueryTiles> softmax;
    ValueSums<kHeadDim, kQueryTiles> sums[kSources] = {};
    int stage = 0;
    for (int tile = first_tile; tile < last_tile; tile += warps) {
      start(tile + warps, stage ^ 1);
      thread.template wait<1>();
      thread.sync_warp();
      const std::uint8_t* tiles = ring + stage * Shared::kStageBytes;
      const int row = tile * kTileRows + thread.lane();
      ScoreTile<kQueryTiles> scores = {};
      KVC_UNROLL
      for (int source = 0; source < kSources; ++source) {
        const T* keys = key_numbers<T, kHeadDim, kCodes>(
            thread, params, params.rows[source], row < range.last ? row : range.last - 1,
            tiles + 2 * source * Shared::kTileBytes, numbers);
        add_scores(thread, keys, query[source], scores);
        if (kCodes && source + 1 < kSources) {
          thread.sync_warp();  // the next source's keys take the place
        }
      }
      WeightFragments<kQueryTiles> weights;
      const RaiseFactors<kQueryTiles> raised =
          soften<T>(thread, scores, params.scale, params.softcap, range.first - tile * kTileRows,
                    range.last - tile * kTileRows, softmax, weights);
      KVC_UNROLL
      for (int source = 0; source < kSources; ++source) {
        const T* values = value_numbers<T, kHeadDim, kCodes>(
            thread, params.rows[source], tiles + (2 * source + 1) * Shared::kTileBytes, numbers);
        add_values(thread, values, weights, raised, sums[source]);
      }
      thread.sync_warp();  // the stage is free
      stage ^= 1;
    }
    finish_sums(thread, softmax);
    write_partials(thread, params, softmax, sums);
  }
};

// With as many warps, up to the kernel's, as shared memory takes.
template <class T, int kHeadDim, int kQueryTiles, int kSources, bool kCodes, class Launcher>
LaunchError launch_dense_instance(const DenseAttention& params, const Launcher& launcher) {
  using Instance = DenseAttentionKernel<T, kHeadDim, kQueryTiles, kSources, kCodes>;
  using Shared = DenseShared<kHeadDim, kSources, kCodes>;
  int warps = launcher.threads(Instance::kThreads) / 32;
  while (warps > 1 && Shared::bytes(warps, kQueryTiles) > launcher.shared_bytes()) {
    warps /= 2;
  }
  return launcher.template run<Instance>(
      params, {params.partials.num_parts, params.num_kv_heads, params.num_sequences}, 32 * warps,
      Shared::bytes(warps, kQueryTiles));
}

template <int kSources, class Launcher>
LaunchError launch_dense(const DenseAttention& params, const Launcher& launcher) {
  if (LaunchError error = check_dense_attention(params, kSources); !error.empty()) {
    return error;
  }
  const bool codes = needs_decoding(params.rows[0].key);
  const bool many_heads = params.num_heads / params.num_kv_heads > 8;
  return with_type(params.element, [&](auto type) {
    return with_flag(codes, [&](auto coded) {
      return with_number<32, 64, 128, 256>(params.head_dim, [&](auto width) -> LaunchError {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        constexpr bool kCodes = decltype(coded)::value;
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
  });
}

template <class Launcher>
LaunchError launch_kernels(const DenseAttention& params, const Launcher& launcher) {
  return params.num_sources == 2 ? launch_dense<2>(params, launcher)
                                 : launch_dense<1>(params, launcher);
}

}  // namespace kvc
