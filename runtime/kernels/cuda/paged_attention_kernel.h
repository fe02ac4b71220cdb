// place_pages: grid (sequence, tile of the order), a block's threads share out the pages.
// attend_open: grid (KV head, sequence, part). The block's threads bring its rows to shared memory; a warp takes a query head, a lane a
// row's score, then channels.
#pragma once

#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/cuda/paged_channels.h"

namespace kvc {

struct PlacePagesKernel : Kernel<PlacePages, 256> {
  static constexpr const char* kName = "place_pages";

  template <class Thread>
  static KVC_DEVICE void run(const PlacePages& params, Thread& thread) {
    const int sequence = thread.block_x(), tile = thread.block_y();
    const int tokens = params.span.within(params.tokens[sequence]);
    const int coded = params.span.end(tokens);
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

// The rows that a KV head's query heads read in a part besides codes: up to 32 of an open tile, and token 0.
struct OpenRowsOfHead {
  const std::uint16_t *keys, *values;  // of the tile's first row; rows are `stride` numbers apart
  const std::uint16_t *first_key, *first_value;
  int begin, end;  // rows of the tile
  std::int64_t stride;
  bool reads_first;
};
KVC_HOST_DEVICE OpenRowsOfHead open_rows(const AttendOpen& params, int sequence, int kv_head,
                                         int part) {
  const int tokens = params.span.within(params.tokens[sequence]);
  const std::int64_t stride = static_cast<std::int64_t>(params.num_kv_heads) * params.head_dim;
  const std::int64_t channel = static_cast<std::int64_t>(kv_head) * params.head_dim;
  const int start = params.span.end(tokens) + part * kScaledRows;
  const int hidden = params.span.hidden(tokens);
  const int of_tile = tokens - start < kScaledRows ? tokens - start : kScaledRows;
  const int parts = params.num_parts(),
            present = (tokens - params.span.end(tokens) - 1) / kScaledRows + 1;
  const int number = params.numbers == nullptr || of_tile <= 0
                         ? -1
                         : params.numbers[(sequence + 1) * parts - present + part];
  const bool has_tile = number >= 0 && number < params.num_tiles;
  const std::int64_t tile = has_tile ? number * kScaledRows * stride : 0;
  const int end = has_tile ? of_tile : 0, begin = hidden > start ? hidden - start : 0;
  const auto at = [&](const void* rows, std::int64_t from) {
    return rows == nullptr ? nullptr : static_cast<const std::uint16_t*>(rows) + from + channel;
  };
  return {at(params.keys, tile),
          at(params.values, tile),
          at(params.first_keys, sequence * stride),
          at(params.first_values, sequence * stride),
          begin < end ? begin : end,
          end,
          stride,
          part == 0 && params.span.reads_first(tokens)};
}

// In a block's shared memory: keys, then values, of the tile and of token 0 behind it; then every warp's query in float32.
struct OpenShared {
  static constexpr int kRows = kScaledRows + 1;
  int dim;

  // Numbers from one row to the next: of 16 bytes' alignment, and eight rows meet no bank twice.
  KVC_HOST_DEVICE int stride() const { return (dim + 7) / 8 * 8 + 8; }
  KVC_HOST_DEVICE int query() const { return 2 * kRows * stride() * 2; }
  KVC_HOST_DEVICE int bytes(int warps) const { return query() + warps * dim * 4; }
};

struct AttendOpenKernel : Kernel<AttendOpen, 128, 4> {
  static constexpr const char* kName = "attend_open";
  static constexpr int kMostLanePairs = 4;  // of channels: head_dim up to 256

  template <class Thread>
  static KVC_DEVICE void run(const AttendOpen& params, Thread& thread) {
    const int kv_head = thread.block_x(), sequence = thread.block_y(), dim = params.head_dim;
    const OpenShared shared{dim};
    const OpenRowsOfHead rows = open_rows(params, sequence, kv_head, thread.block_z());
    auto* keys = reinterpret_cast<std::uint16_t*>(thread.shared());  // [kRows, stride]
    std::uint16_t* values = keys + OpenShared::kRows * shared.stride();
    copy_rows(thread, shared, rows, rows.keys, rows.first_key, keys);
    copy_rows(thread, shared, rows, rows.values, rows.first_value, values);
    thread.commit();
    thread.template wait<0>();
    thread.sync();
    auto* query = reinterpret_cast<float*>(thread.shared() + shared.query()) + thread.warp() * dim;
    const int group = params.num_heads / params.num_kv_heads;
    for (int head = thread.warp(); head < group; head += thread.count() / 32) {
      attend_head(params, thread, shared, rows, kv_head * group + head, keys, values, query);
    }
  }

 private:
  // The tile's rows from begin to end, and token 0's; others stay as they are, and have no weight.
  template <class Thread>
  static KVC_DEVICE void copy_rows(Thread& thread, const OpenShared& shared,
                                   const OpenRowsOfHead& rows, const std::uint16_t* tile,
                                   const std::uint16_t* first, std::uint16_t* to) {
    const auto copy_row = [&](const std::uint16_t* from, int row, int part) {
      if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0 && 8 * part + 8 <= shared.dim) {
        thread.template copy_async<16>(to + row * shared.stride() + 8 * part, from + 8 * part,
                                       true);
        return;
      }
      for (int i = 8 * part; i < 8 * part + 8 && i < shared.dim; ++i) {
        to[row * shared.stride() + i] = from[i];
      }
    };
    const int parts = (shared.dim + 7) / 8;
    KVC_UNROLL_BY_4
    for (int i = rows.begin * parts + thread.index(); i < rows.end * parts; i += thread.count()) {
      copy_row(tile + i / parts * rows.stride, i / parts, i % parts);
    }
    for (int i = thread.index(); rows.reads_first && i < parts; i += thread.count()) {
      copy_row(first, kScaledRows, i);
    }
  }

  template <class Thread>
  static KVC_DEVICE void attend_head(const AttendOpen& params, Thread& thread,
                                     const OpenShared& shared, const OpenRowsOfHead& rows, int head,
                                     const std::uint16_t* keys, const std::uint16_t* values,
                                     float* query) {
    const int lane = thread.lane(), sequence = thread.block_y(), dim = params.head_dim;
    const std::int64_t first =
        (static_cast<std::int64_t>(sequence) * params.num_heads + head) * dim;
    const auto* from = static_cast<const std::uint16_t*>(params.query) + first;
    auto* to_float16 =
        thread.block_z() == 0 ? static_cast<std::uint16_t*>(params.query_float16) : nullptr;
    thread.sync_warp();  // the query before was read
    KVC_UNROLL_BY_4
    for (int i = lane; i < dim; i += 32) {
      query[i] = widened(params.element, from[i]);
      if (to_float16 != nullptr) {
        to_float16[first + i] = narrow_bits(Float16{}, query[i]);
      }
    }
    thread.sync_warp();
    const bool is_row = lane >= rows.begin && lane < rows.end;
    const float score =
        is_row ? scaled_score(product_with(params, thread, query, keys + lane * shared.stride()),
                              params.scale, params.softcap)
               : negative_infinity();
    float first_score = negative_infinity();
    if (rows.reads_first) {
      const std::uint16_t* key = keys + kScaledRows * shared.stride();
      float product = 0;
      for (int i = lane; i < dim; i += 32) {
        product += query[i] * widened(params.element, key[i]);
      }
      first_score = scaled_score(warp_sum(thread, product), params.scale, params.softcap);
    }
    SoftmaxState softmax;
    softmax.max = fmaxf(warp_max(thread, score), first_score);
    const float weight = exp_below(score, softmax.max),
                first_weight = exp_below(first_score, softmax.max);
    softmax.sum = warp_sum(thread, weight) + first_weight;
    float sums[kMostLanePairs][2] = {};
    KVC_UNROLL_BY_4
    for (int row = rows.begin; row < rows.end; ++row) {
      add_row(params, lane, values + row * shared.stride(), thread.shuffle(weight, row), sums);
    }
    if (rows.reads_first) {
      add_row(params, lane, values + kScaledRows * shared.stride(), first_weight, sums);
    }
    const std::int64_t to = params.partials.row(sequence, thread.block_z(), params.num_heads, head);
    if (lane == 0) {
      params.partials.max[to] = softmax.max;
      params.partials.sum[to] = softmax.sum;
    }
    KVC_UNROLL
    for (int i = 0; i < kMostLanePairs; ++i) {
      for (int j = 0; j < 2 && 64 * i + 2 * lane + j < dim; ++j) {
        params.partials.output[to * dim + 64 * i + 2 * lane + j] = sums[i][j];
      }
    }
  }

  // A head's query times a key, eight channels at a time.
  template <class Thread>
  static KVC_DEVICE float product_with(const AttendOpen& params, Thread& thread, const float* query,
                                       const std::uint16_t* key) {
    float products[2] = {};
    int i = 0;
    KVC_UNROLL_BY_4
    for (; i + 8 <= params.head_dim; i += 8) {
      std::uint32_t words[4];
      thread.load_words(words, key + i);
      KVC_UNROLL
      for (int j = 0; j < 4; ++j) {
        products[0] += query[i + 2 * j] *
                       widened(params.element, static_cast<std::uint16_t>(words[j] & 0xFFFFu));
        products[1] += query[i + 2 * j + 1] *
                       widened(params.element, static_cast<std::uint16_t>(words[j] >> 16));
      }
    }
    for (; i < params.head_dim; ++i) {
      products[0] += query[i] * widened(params.element, key[i]);
    }
    return products[0] + products[1];
  }
  // A lane has channels 2 lane, 2 lane + 1 of every 64.
  static KVC_DEVICE void add_row(const AttendOpen& params, int lane, const std::uint16_t* row,
                                 float weight, float (&sums)[kMostLanePairs][2]) {
    KVC_UNROLL
    for (int i = 0; i < kMostLanePairs; ++i) {
      if (64 * i + 2 * lane < params.head_dim) {  // behind an odd one lies a number of the stride
        const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(row + 64 * i + 2 * lane);
        sums[i][0] += weight * widened(params.element, static_cast<std::uint16_t>(pair & 0xFFFFu));
        sums[i][1] += weight * widened(params.element, static_cast<std::uint16_t>(pair >> 16));
      }
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const AttendOpen& params, const Launcher& launcher) {
  const int threads = launcher.threads(AttendOpenKernel::kThreads);
  return launcher.template run<AttendOpenKernel>(
      params, {params.num_kv_heads, params.num_sequences, params.num_parts()}, threads,
      OpenShared{params.head_dim}.bytes(threads / 32));
}

}  // namespace kvc
