// Grid: (tile, keys or values of a KV head, sequence). A thread takes a channel of the tile's tokens.
#pragma once

#include "runtime/kernels/cuda/paged_channels.h"

namespace kvc {

// kOneToken: first tokens alone, which needs more registers than many tokens leave.
template <bool kOneToken>
struct ReadTokensKernel : Kernel<ReadTokens, 128, 4> {
  static constexpr const char* kName = "read_tokens";
  static constexpr int shared_bytes(int head_dim) {  // levels, and rows
    return (kStagedRows + head_dim) * kPagedTokens * 4;
  }

  template <class Thread>
  static KVC_DEVICE void run(const ReadTokens& params, Thread& thread) {
    const PagedBlocks& of = params.of;
    const HeadPlace place = params.places[thread.block_y()];
    const DeviceBlock& block = of.blocks[place.block];
    const int tile = params.first / kPagedTokens + thread.block_x();
    const int left = params.count - thread.block_x() * kPagedTokens;
    const int count = left < kPagedTokens ? left : kPagedTokens;
    const int page =
        params.page_numbers[thread.block_z() * params.page_stride + tile / params.pages.page_tiles];
    if (page < 0 || page >= params.pages.count) {
      return;
    }
    const std::uint8_t* codes =
        tile_in_pages(params.pages, block, page, tile % params.pages.page_tiles);
    auto* levels = reinterpret_cast<float*>(thread.shared());  // [kStagedRows, 32]
    float* rows = levels + kStagedRows * kPagedTokens;         // [32, head_dim]
    for (int first = 0; first < of.head_dim; first += thread.count()) {
      const int in_head = first + thread.index();
      float sums[kPagedTokens] = {};
      add_coefficients(params, thread, block, codes, place.channel + in_head, in_head < of.head_dim,
                       count, levels, sums);
      KVC_UNROLL
      for (int t = 0; t < kPagedTokens; ++t) {
        if (in_head < of.head_dim) {
          rows[t * of.head_dim + in_head] = sums[t];
        }
      }
    }
    thread.sync();
    write_rows(params, thread, block, place, tile * kPagedTokens, count, rows);
  }

 private:
  template <class Thread>
  static KVC_DEVICE void add_coefficients(const ReadTokens& params, Thread& thread,
                                          const DeviceBlock& block, const std::uint8_t* codes,
                                          int channel, bool is_channel, int count, float* levels,
                                          float (&sums)[kPagedTokens]) {
    const DeviceTiles& tiles = block.tiles;
    const float* decoder = image_floats(params.of, block.decoder);
    for (int first = 0; first < tiles.num_coefficients; first += kStagedRows) {
      const int staged = tiles.num_coefficients - first < kStagedRows
                             ? tiles.num_coefficients - first
                             : kStagedRows;
      thread.sync();
      // Here and below several loads are under way. Only tokens that are read: often that is token 0 alone.
      KVC_UNROLL_BY_4
      for (int i = thread.index(); i < staged * count; i += thread.count()) {
        const int token = i % count, row = i / count;
        const CoefficientPlace place = coefficient_place(tiles, first + row);
        levels[row * kPagedTokens + token] =
            code_level(unpack_code(codes + place.byte, place.bits, token), place.bits) *
            tile_gain(tiles, codes, token);
      }
      thread.sync();
      const float* weights = decoder + static_cast<std::int64_t>(first) * block.channels + channel;
      if constexpr (kOneToken) {
        sums[0] += is_channel ? product_with_first(levels, weights, block.channels, staged) : 0.0f;
      } else if (is_channel) {
        KVC_UNROLL_BY_8
        for (int row = 0; row < staged; ++row) {
          add_tokens(levels + row * kPagedTokens, weights[row * block.channels], count, sums);
        }
      }
    }
  }

  // The first token's levels times the decoder's numbers of a channel, many of which are under way.
  static KVC_DEVICE float product_with_first(const float* levels, const float* weights,
                                             int channels, int count) {
    constexpr int kAtOnce = 32;
    float sum = 0;
    for (int first = 0; first < count; first += kAtOnce) {
      float loaded[kAtOnce];
      KVC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        loaded[i] = first + i < count ? weights[(first + i) * channels] : 0.0f;
      }
      KVC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        sum += first + i < count ? loaded[i] * levels[(first + i) * kPagedTokens] : 0.0f;
      }
    }
    return sum;
  }

  template <class Thread>
  static KVC_DEVICE void write_rows(const ReadTokens& params, Thread& thread,
                                    const DeviceBlock& block, const HeadPlace& of_head,
                                    int first_position, int count, const float* rows) {
    const PagedBlocks& of = params.of;
    const bool is_key = thread.block_y() < of.num_kv_heads;
    const int head = thread.block_y() % of.num_kv_heads;
    auto* to = static_cast<std::uint16_t*>(is_key ? params.keys : params.values);
    KVC_UNROLL_BY_4
    for (int i = thread.index(); i < count * of.head_dim; i += thread.count()) {
      const int t = i / of.head_dim, in_head = i % of.head_dim, channel = of_head.channel + in_head;
      const BlockChannel place{0, head, in_head, is_key};
      const std::int64_t position = first_position + t;
      const int distance = is_key ? partner_distance(of.rope, in_head) : 0;
      float number = rows[i] + mean_at(of, of.rope, block, place, channel, position);
      if (distance != 0 && !block.rotated) {
        const float other =
            rows[i + distance] + mean_at(of, of.rope, block, place, channel + distance, position);
        number = turned_number(of.rope, in_head, position, number, other, false);
      }
      const std::int64_t token = static_cast<std::int64_t>(thread.block_z()) * params.count +
                                 thread.block_x() * kPagedTokens + t;
      to[(token * of.num_kv_heads + head) * of.head_dim + in_head] =
          narrow_bits(params.element, number);
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const ReadTokens& params, const Launcher& launcher) {
  return with_flag(params.count == 1, [&](auto one_token) {
    using Instance = ReadTokensKernel<decltype(one_token)::value>;
    return launcher.template run<Instance>(
        params,
        {divide_up(params.count, kPagedTokens), 2 * params.of.num_kv_heads, params.num_sequences},
        launcher.threads(Instance::kThreads), Instance::shared_bytes(params.of.head_dim));
  });
}

}  // namespace kvc
