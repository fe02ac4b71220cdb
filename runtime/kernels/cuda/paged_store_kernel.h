// Grid: (tokens in chunks of the block's warps, block of codes). A warp codes the tokens of one tile, from the first of them
// in the batch on.
#pragma once

#include "runtime/kernels/cuda/code_tiles_kernel.h"
#include "runtime/kernels/cuda/paged_channels.h"

namespace kvc {

// The tile of a slot, -1: none.
KVC_HOST_DEVICE std::int64_t tile_of_slot(const DevicePages& pages, std::int64_t slot) {
  const std::int64_t tile = slot < 0 ? -1 : slot / kPagedTokens;
  return tile < static_cast<std::int64_t>(pages.count) * pages.page_tiles ? tile : -1;
}

// The first gain of least squared error, all lanes together.
template <class Thread>
KVC_DEVICE int best_gain_of_warp(Thread& thread, const DeviceTiles& tiles, const float* z,
                                 const float* steps) {
  float errors[kGainIndices] = {};
  for (int c = thread.lane(); c < tiles.num_coefficients; c += 32) {
    const int bits = coefficient_place(tiles, c).bits;
    KVC_UNROLL
    for (int gain = 0; gain < kGainIndices; ++gain) {
      const float step = steps[c] * gain_of(gain);
      const float difference = z[c] - (quantised_level(z[c], step, bits) + 0.5f) * step;
      errors[gain] += difference * difference;
    }
  }
  int best = 2;
  float least = INFINITY;
  KVC_UNROLL
  for (int gain = 0; gain < kGainIndices; ++gain) {
    const float error = warp_sum(thread, errors[gain]);
    if (error < least) {
      least = error;
      best = gain;
    }
  }
  return best;
}

struct StoreCodesKernel : Kernel<StoreCodes, 128> {
  static constexpr const char* kName = "store_codes";
  // A warp has: which token of the batch, or -1, and its gain, for the tile's 32.
  static constexpr int kWarpBytes = 8 * kPagedTokens;

  template <class Thread>
  static KVC_DEVICE void run(const StoreCodes& params, Thread& thread) {
    const int token = thread.block_x() * (thread.count() / 32) + thread.warp();
    if (token >= params.count) {
      return;
    }
    const std::int64_t tile = tile_of_slot(params.pages, params.slots[token]);
    if (tile < 0 || (token > 0 && tile_of_slot(params.pages, params.slots[token - 1]) == tile)) {
      return;  // another warp's
    }
    store_run(params, thread, token, tile);
  }

 private:
  template <class Thread>
  static KVC_DEVICE void store_run(const StoreCodes& params, Thread& thread, int first,
                                   std::int64_t tile) {
    const DeviceBlock& block = params.of.blocks[thread.block_y()];
    const DeviceTiles& tiles = block.tiles;
    const float* steps = image_floats(params.of, block.steps);
    std::uint8_t* codes = tile_in_pages(params.pages, block, tile / params.pages.page_tiles,
                                        static_cast<int>(tile % params.pages.page_tiles));
    auto* sources = reinterpret_cast<int*>(thread.shared() + thread.warp() * kWarpBytes);  // [32]
    auto* gains = reinterpret_cast<float*>(sources + kPagedTokens);                        // [32]
    const int lane = thread.lane();
    sources[lane] = -1;
    thread.sync_warp();
    if (first + lane < params.count &&
        tile_of_slot(params.pages, params.slots[first + lane]) == tile) {
      sources[params.slots[first + lane] % kPagedTokens] = first + lane;
    }
    thread.sync_warp();
    const auto z_of = [&](int source) {
      return params.z + static_cast<std::int64_t>(source) * params.of.num_coefficients +
             block.first_coefficient;
    };
    const bool is_new = sources[0] >= 0;
    for (int t = 0; t < kPagedTokens; ++t) {
      const int source = sources[t];
      int gain = 2;
      if (source >= 0 && tiles.gain) {
        gain = best_gain_of_warp(thread, tiles, z_of(source), steps);
      }
      if (lane == 0) {
        gains[t] = gain_of(gain);
        if (tiles.gain && (source >= 0 || is_new)) {
          codes[tiles.code_bytes + t] = static_cast<std::uint8_t>(source >= 0 ? gain : 0);
        }
      }
    }
    thread.sync_warp();
    auto* words = reinterpret_cast<std::uint32_t*>(codes);
    for (int word = lane; word < tiles.code_bytes / 4; word += 32) {
      write_word(tiles, steps, sources, gains, is_new, word, z_of, words[word]);
    }
  }

  template <class Coefficients>
  static KVC_DEVICE void write_word(const DeviceTiles& tiles, const float* steps,
                                    const int* sources, const float* gains, bool is_new, int word,
                                    const Coefficients& z_of, std::uint32_t& to) {
    int coefficient = 0, left = word, bits = kMostCodeBits;
    while (left >= tiles.coefficients[bits] * bits) {
      left -= tiles.coefficients[bits] * bits;
      coefficient += tiles.coefficients[bits];
      --bits;
    }
    coefficient += left / bits;
    const float step = steps[coefficient];
    const std::uint32_t written =
        packed_word(bits, left % bits, [&](int t) { return sources[t] < 0 ? 0u : ~0u; });
    const std::uint32_t packed = packed_word(bits, left % bits, [&](int t) {
      if (sources[t] < 0) {
        return 0u;
      }
      const float level = quantised_level(z_of(sources[t])[coefficient], step * gains[t], bits);
      return static_cast<std::uint32_t>(static_cast<int>(level) + (1 << (bits - 1)));
    });
    to = is_new ? packed : (to & ~written) | packed;
  }
};

template <class Launcher>
LaunchError launch_kernels(const StoreCodes& params, const Launcher& launcher) {
  const int threads = launcher.threads(StoreCodesKernel::kThreads), warps = threads / 32;
  return launcher.template run<StoreCodesKernel>(
      params, {divide_up(params.count, warps), params.of.num_blocks}, threads,
      warps * StoreCodesKernel::kWarpBytes);
}

}  // namespace kvc
