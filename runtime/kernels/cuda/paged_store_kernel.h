// Grid: (some tokens, block of codes). A block of threads codes the tokens of one tile after the other, from the first of them in
// the batch on.
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

// Tokens whose tiles a block of threads codes one after the other: of prompts, where few begin a tile, several.
KVC_HOST_DEVICE int tokens_of_block(const StoreCodes& params) {
  constexpr int kFewTokens = 256;
  return params.tables != nullptr ? kPagedTokens : params.count > kFewTokens ? 8 : 1;
}

// Four blocks at once leave registers for a word of codes without spilling.
struct StoreCodesKernel : Kernel<StoreCodes, 256, 4> {
  static constexpr const char* kName = "store_codes";
  // Which token of the batch, or -1, and its gain, for the tile's 32.
  static constexpr int kSharedBytes = 8 * kPagedTokens;

  template <class Thread>
  static KVC_DEVICE void run(const StoreCodes& params, Thread& thread) {
    const DeviceBlock& block = params.of.blocks[thread.block_y()];
    const int begin = thread.block_x() * tokens_of_block(params);
    auto* sources = reinterpret_cast<int*>(thread.shared());  // [32]
    if (params.tables != nullptr) {
      for (int t = thread.index(); t < kPagedTokens; t += thread.count()) {
        sources[t] = begin + t < params.count ? begin + t : -1;
      }
      const std::uint8_t* tile = tile_at(params.tables[thread.block_y()], params.sequence,
                                         params.first_tile + thread.block_x());
      return store_run(params, thread, block, sources, const_cast<std::uint8_t*>(tile));
    }
    const int last = begin + tokens_of_block(params);
    for (int first = begin; first < last && first < params.count; ++first) {
      const std::int64_t tile = tile_of_slot(params.pages, params.slots[first]);
      if (tile < 0 || (first > 0 && tile_of_slot(params.pages, params.slots[first - 1]) == tile)) {
        continue;  // begins no tile
      }
      thread.sync();
      find_sources(params, thread, first, tile, sources);
      store_run(params, thread, block, sources,
                tile_in_pages(params.pages, block, tile / params.pages.page_tiles,
                              static_cast<int>(tile % params.pages.page_tiles)));
    }
  }

 private:
  // Finds the tile's tokens, which follow each other from `first` on.
  template <class Thread>
  static KVC_DEVICE void find_sources(const StoreCodes& params, Thread& thread, int first,
                                      std::int64_t tile, int* sources) {
    for (int t = thread.index(); t < kPagedTokens; t += thread.count()) {
      sources[t] = -1;
    }
    thread.sync();
    for (int t = thread.index(); t < kPagedTokens; t += thread.count()) {
      if (first + t < params.count && tile_of_slot(params.pages, params.slots[first + t]) == tile) {
        sources[params.slots[first + t] % kPagedTokens] = first + t;
      }
    }
  }

  // sources [32]: which token of the batch, or -1; the gains are behind it. A warp finds a token's gain, and all threads
  // write words.
  template <class Thread>
  static KVC_DEVICE void store_run(const StoreCodes& params, Thread& thread,
                                   const DeviceBlock& block, int* sources, std::uint8_t* codes) {
    const DeviceTiles& tiles = block.tiles;
    const float* steps = image_floats(params.of, block.steps);
    auto* gains = reinterpret_cast<float*>(sources + kPagedTokens);  // [32]
    thread.sync();
    const auto z_of = [&](int source) {
      return params.z + static_cast<std::int64_t>(source) * params.of.num_coefficients +
             block.first_coefficient;
    };
    const bool is_new = sources[0] >= 0;
    for (int t = thread.warp(); t < kPagedTokens; t += thread.count() / 32) {
      const int source = sources[t];
      int gain = 2;
      if (source >= 0 && tiles.gain) {
        gain = best_gain_of_warp(thread, tiles, z_of(source), steps);
      }
      if (thread.lane() == 0) {
        gains[t] = gain_of(gain);
        if (tiles.gain && (source >= 0 || is_new)) {
          codes[tiles.code_bytes + t] = static_cast<std::uint8_t>(source >= 0 ? gain : 0);
        }
      }
    }
    thread.sync();
    auto* words = reinterpret_cast<std::uint32_t*>(codes);
    for (int word = thread.index(); word < tiles.code_bytes / 4; word += thread.count()) {
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
  return launcher.template run<StoreCodesKernel>(
      params, {divide_up(params.count, tokens_of_block(params)), params.of.num_blocks},
      launcher.threads(StoreCodesKernel::kThreads), StoreCodesKernel::kSharedBytes);
}

}  // namespace kvc
