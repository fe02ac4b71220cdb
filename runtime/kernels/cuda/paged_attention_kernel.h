// place_pages: grid (sequence, tile of the order), a block's threads share out the pages.
// attend_open: grid (query heads in chunks of the block's warps, sequence), a lane takes a row's score, then channels.
#pragma once

#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/cuda/paged_channels.h"

namespace kvc {

struct PlacePagesKernel : Kernel<PlacePages, 256> {
  static constexpr const char* kName = "place_pages";

  template <class Thread>
  static KVC_DEVICE void run(const PlacePages& params, Thread& thread) {
    const int sequence = thread.block_x(), tile = thread.block_y();
    const int tokens = params.tokens[sequence], coded = params.span.end(tokens);
    const int page_tokens = params.pages.page_tiles * kScaledRows;
    const int all = (coded + page_tokens - 1) / page_tokens;
    const int pages = all < params.most_pages ? all : params.most_pages;
    const DeviceBlock& block = params.of.blocks[params.order[tile]];
    const std::int64_t of_tile =
        static_cast<std::int64_t>(tile) * params.num_sequences * params.most_pages;
    const void** addresses =
        params.addresses + of_tile + static_cast<std::int64_t>(sequence) * params.most_pages;
    for (int page = thread.index(); page < pages; page += thread.count()) {
      const int number = params.page_numbers[sequence * params.page_stride + page];
      const int known = number >= 0 && number < params.pages.count ? number : 0;
      addresses[page] = tile_in_pages(params.pages, block, known, 0);
    }
    if (thread.index() == 0 && tile == 0) {
      params.num_rows[sequence] = coded;
      params.first_rows[sequence] = params.span.begin(tokens);
    }
    if (thread.index() == 0 && sequence == 0) {
      DeviceTiles tiles = block.tiles;
      tiles.blocks = params.addresses + of_tile;
      tiles.max_blocks = params.most_pages;
      tiles.block_tiles = params.pages.page_tiles;
      params.tiles[tile] = tiles;
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const PlacePages& params, const Launcher& launcher) {
  return launcher.template run<PlacePagesKernel>(params, {params.num_sequences, params.num_tiles},
                                                 launcher.threads(PlacePagesKernel::kThreads));
}

// The rows that a query head reads besides codes: up to 32 of the open tile, and token 0.
struct OpenRowsOfHead {
  const std::uint16_t *keys, *values;  // of the tile's first row; rows are `stride` numbers apart
  const std::uint16_t *first_key, *first_value;
  int begin, end;  // rows of the tile
  std::int64_t stride;
  bool reads_first;
};
KVC_HOST_DEVICE OpenRowsOfHead open_rows(const AttendOpen& params, int sequence, int head) {
  const int tokens = params.tokens[sequence],
            kv_head = head / (params.num_heads / params.num_kv_heads);
  const std::int64_t stride = static_cast<std::int64_t>(params.num_kv_heads) * params.head_dim;
  const std::int64_t channel = static_cast<std::int64_t>(kv_head) * params.head_dim;
  const int number = params.numbers == nullptr ? -1 : params.numbers[sequence];
  const bool has_tile = params.span.has_open && number >= 0 && number < params.num_tiles;
  const std::int64_t tile = has_tile ? number * kScaledRows * stride : 0;
  const int start = params.span.end(tokens), hidden = params.span.hidden(tokens);
  const auto at = [&](const void* rows, std::int64_t from) {
    return rows == nullptr ? nullptr : static_cast<const std::uint16_t*>(rows) + from + channel;
  };
  return {at(params.keys, tile),
          at(params.values, tile),
          at(params.first_keys, sequence * stride),
          at(params.first_values, sequence * stride),
          hidden > start ? hidden - start : 0,
          has_tile ? tokens - start : 0,
          stride,
          params.span.reads_first(tokens)};
}

struct AttendOpenKernel : Kernel<AttendOpen, 128, 4> {
  static constexpr const char* kName = "attend_open";
  static constexpr int kMostLaneChannels = 8;  // head_dim up to 256

  template <class Thread>
  static KVC_DEVICE void run(const AttendOpen& params, Thread& thread) {
    const int head = thread.block_x() * (thread.count() / 32) + thread.warp();
    const int sequence = thread.block_y(), lane = thread.lane(), dim = params.head_dim;
    if (head >= params.num_heads) {
      return;
    }
    const OpenRowsOfHead rows = open_rows(params, sequence, head);
    auto* query = reinterpret_cast<float*>(thread.shared()) + thread.warp() * dim;
    const std::int64_t first =
        (static_cast<std::int64_t>(sequence) * params.num_heads + head) * dim;
    const auto* from = static_cast<const std::uint16_t*>(params.query) + first;
    auto* to_float16 = static_cast<std::uint16_t*>(params.query_float16);
    float of_first = 0;
    for (int i = lane; i < dim; i += 32) {
      query[i] = widened(params.element, from[i]);
      if (to_float16 != nullptr) {
        to_float16[first + i] = narrow_bits(Float16{}, query[i]);
      }
      if (rows.reads_first) {
        of_first += query[i] * widened(params.element, rows.first_key[i]);
      }
    }
    thread.sync_warp();
    SoftmaxState softmax;
    float score = negative_infinity();
    if (lane >= rows.begin && lane < rows.end) {
      score = scaled_score(product_with(params, thread, query, rows.keys + lane * rows.stride),
                           params.scale, params.softcap);
    }
    of_first = warp_sum(thread, of_first);
    const float first_score = rows.reads_first
                                  ? scaled_score(of_first, params.scale, params.softcap)
                                  : negative_infinity();
    softmax.max = fmaxf(warp_max(thread, score), first_score);
    const float weight = exp_below(score, softmax.max),
                first_weight = exp_below(first_score, softmax.max);
    softmax.sum = warp_sum(thread, weight) + first_weight;
    float sums[kMostLaneChannels] = {};
    if (rows.reads_first) {
      add_row(params, lane, rows.first_value, first_weight, sums);
    }
    if (rows.begin < rows.end) {
      // Without conditions, so that many loads are under way: rows outside have no weight.
      KVC_UNROLL_BY_8
      for (int row = 0; row < kScaledRows; ++row) {
        const int valid = row < rows.begin ? rows.begin : row < rows.end ? row : rows.end - 1;
        add_row(params, lane, rows.values + valid * rows.stride, thread.shuffle(weight, row), sums);
      }
    }
    const std::int64_t to = params.partials.row(sequence, 0, params.num_heads, head);
    if (lane == 0) {
      params.partials.max[to] = softmax.max;
      params.partials.sum[to] = softmax.sum;
    }
    KVC_UNROLL
    for (int i = 0; i < kMostLaneChannels; ++i) {
      if (32 * i + lane < dim) {
        params.partials.output[to * dim + 32 * i + lane] = sums[i];
      }
    }
  }

 private:
  // A head's query times a key, eight channels at a time where these are aligned.
  template <class Thread>
  static KVC_DEVICE float product_with(const AttendOpen& params, Thread& thread, const float* query,
                                       const std::uint16_t* key) {
    float product = 0;
    int i = 0;
    if (reinterpret_cast<std::uintptr_t>(key) % 16 == 0) {
      KVC_UNROLL_BY_4
      for (; i + 8 <= params.head_dim; i += 8) {
        std::uint32_t words[4];
        thread.load_words(words, key + i);
        KVC_UNROLL
        for (int j = 0; j < 4; ++j) {
          product += query[i + 2 * j] *
                     widened(params.element, static_cast<std::uint16_t>(words[j] & 0xFFFFu));
          product += query[i + 2 * j + 1] *
                     widened(params.element, static_cast<std::uint16_t>(words[j] >> 16));
        }
      }
    }
    for (; i < params.head_dim; ++i) {
      product += query[i] * widened(params.element, key[i]);
    }
    return product;
  }
  static KVC_DEVICE void add_row(const AttendOpen& params, int lane, const std::uint16_t* row,
                                 float weight, float (&sums)[kMostLaneChannels]) {
    KVC_UNROLL
    for (int i = 0; i < kMostLaneChannels; ++i) {
      if (32 * i + lane < params.head_dim) {
        sums[i] += weight * widened(params.element, row[32 * i + lane]);
      }
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const AttendOpen& params, const Launcher& launcher) {
  const int threads = launcher.threads(AttendOpenKernel::kThreads), warps = threads / 32;
  return launcher.template run<AttendOpenKernel>(
      params, {divide_up(params.num_heads, warps), params.num_sequences}, threads,
      warps * params.head_dim * 4);
}

}  // namespace kvc
