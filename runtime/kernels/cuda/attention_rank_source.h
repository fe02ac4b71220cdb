// Where keys and values in rank space come from: 32 tokens by 32 latents or coefficients at a time, copied by a warp
// to its shared memory and there, where they are codes, turned into 16-bit numbers.
#pragma once

#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/attention_rows.h"
#include "runtime/kernels/cuda/attention_tiles.h"
#include "runtime/kernels/cuda/code_levels.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

constexpr int kRankChunk = 32;
constexpr int kChunkStride = kRankChunk + kPadding;  // numbers of a row of 32

// A chunk as a left side of products: rows are tokens or, transposed, latents.
template <bool kTokensAreRows, class T, class Thread>
KVC_DEVICE void load_token_rows(Thread& thread, std::uint32_t (&a)[4], const T* tile, int stride,
                                int token, int rank) {
  if constexpr (kTokensAreRows) {
    thread.load_matrices(a, left_side(tile, stride, token, rank, thread.lane()));
  } else {
    thread.load_matrices_transposed(a,
                                    transposed_left_side(tile, stride, rank, token, thread.lane()));
  }
}
template <bool kTokensAreRows, class T, class Thread>
KVC_DEVICE void load_rank_rows(Thread& thread, std::uint32_t (&a)[4], const T* tile, int rank,
                               int token) {
  if constexpr (kTokensAreRows) {
    thread.load_matrices_transposed(
        a, transposed_left_side(tile, kChunkStride, token, rank, thread.lane()));
  } else {
    thread.load_matrices(a, left_side(tile, kChunkStride, rank, token, thread.lane()));
  }
}

// Latents of 16 bits: nothing to decode.
struct LatentNumbers {
  static constexpr bool kTokensAreRows = true, kDecodes = false, kGains = false;
  static constexpr int kBytes = kTileRows * kChunkStride * 2;
  template <class Thread>
  static KVC_DEVICE void copy(Thread& thread, const RankAttention& params, int, int sequence,
                              int tile, int count, int column, int rank, int first,
                              std::uint8_t* to) {
    copy_numbers<kRankChunk>(thread, params.latents, sequence, tile, column + first, count,
                             reinterpret_cast<std::uint16_t*>(to), rank - first);
  }
  template <class T, class Thread>
  static KVC_DEVICE void decode(Thread&, const RankAttention&, int, int, const std::uint8_t*, T*) {}
  static KVC_DEVICE int rank(const RankAttention&, int, int rank) { return rank; }
};

// Latents of 8 or 4 bits.
struct LatentCodes {
  static constexpr bool kTokensAreRows = true, kDecodes = true, kGains = false;
  static constexpr int kBytes = CodeTileShape<kRankChunk>::kBytes;
  template <class Thread>
  static KVC_DEVICE void copy(Thread& thread, const RankAttention& params, int, int sequence,
                              int tile, int count, int column, int, int first, std::uint8_t* to) {
    copy_codes<kRankChunk>(thread, params.latents, sequence, tile, column + first, count, to);
  }
  template <class T, class Thread>
  static KVC_DEVICE void decode(Thread& thread, const RankAttention& params, int, int,
                                const std::uint8_t* from, T* to) {
    decode_tile<T, kRankChunk>(thread, params.latents, from, to);
  }
  static KVC_DEVICE int rank(const RankAttention&, int, int rank) { return rank; }
};

// Coefficients of coded tokens, as levels; coefficients are rows, tokens stand side by side.
template <RankCodes RankAttention::*kCodes>
struct TileCodes {
  static constexpr bool kTokensAreRows = false, kDecodes = true, kGains = true;
  static constexpr int kBytes = kRankChunk * 4 * kMostCodeBits;
  static KVC_DEVICE const DeviceTiles& tiles_of(const RankAttention& params, int block) {
    return (params.*kCodes).tiles[block];
  }
  template <class Thread>
  static KVC_DEVICE void copy(Thread& thread, const RankAttention& params, int block, int sequence,
                              int tile, int count, int, int, int first, std::uint8_t* to) {
    const DeviceTiles& tiles = tiles_of(params, block);
    const int begin = coefficient_place(tiles, first).byte;
    const int end = coefficient_place(tiles, first + kRankChunk).byte;
    const std::uint8_t* from = count > 0 ? tile_at(tiles, sequence, tile) + begin : nullptr;
    for (int byte = 4 * thread.lane(); byte < end - begin; byte += 4 * 32) {
      thread.template copy_async<4>(to + byte, count > 0 ? from + byte : from, count > 0);
    }
  }
  // A lane decodes eight tokens of one coefficient in eight.
  template <class T, class Thread>
  static KVC_DEVICE void decode(Thread& thread, const RankAttention& params, int block, int first,
                                const std::uint8_t* from, T* to) {
    const DeviceTiles& tiles = tiles_of(params, block);
    const int begin = coefficient_place(tiles, first).byte, eighth = thread.lane() % 4;
    for (int row = thread.lane() / 4; row < kRankChunk; row += 8) {
      const CoefficientPlace place = coefficient_place(tiles, first + row);
      std::uint32_t pairs[4] = {};
      if (place.bits > 0) {
        unpack_levels(place.bits, CoefficientPlanes{from + place.byte - begin, eighth}, pairs);
      }
      auto* words = reinterpret_cast<std::uint32_t*>(to + row * kChunkStride + 8 * eighth);
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        words[i] = (pairs[2 * i] & 0xFFFFu) | pairs[2 * i + 1] << 16;
        words[2 + i] = pairs[2 * i] >> 16 | (pairs[2 * i + 1] & 0xFFFF0000u);
      }
    }
  }
  static KVC_DEVICE int rank(const RankAttention& params, int block, int) {
    return tiles_of(params, block).num_coefficients;
  }
};

// One number of a row of any element, from global memory.
KVC_HOST_DEVICE float read_number(const DeviceRows& rows, int sequence, int row, int column) {
  const int group = column / kScaledChannels * kScaledChannels, in_group = column % kScaledChannels;
  const RowPlace place = row_place(rows, sequence, row, group);
  if (rows.element == DeviceElement::kBFloat16) {
    return to_float(reinterpret_cast<const BFloat16*>(place.channels)[in_group]);
  }
  if (rows.element == DeviceElement::kFloat16) {
    return to_float(reinterpret_cast<const Float16*>(place.channels)[in_group]);
  }
  if (rows.element == DeviceElement::kFloat8) {
    return rows.scale * float8_to_float(place.channels[in_group]);
  }
  const bool is_int4 = rows.element == DeviceElement::kInt4;
  const int both = place.channels[is_int4 ? in_group % 16 : in_group];
  const int code = !is_int4 ? both : in_group >= 16 ? both >> 4 : both & 15;
  const auto* scales =
      reinterpret_cast<const Float16*>(place.scales + (rows.per_channel ? 2 * in_group : 0));
  return dequantise(static_cast<std::uint32_t>(code), to_float(scales[0]),
                    to_float(scales[place.minimum_offset / 2]));
}

// launch(T{}, Source{}) of what the latents or codes are.
template <RankCodes RankAttention::*kCodes, class Launch>
LaunchError with_rank_source(const RankAttention& params, const Launch& launch) {
  if (params.reads_codes()) {
    return launch(Float16{}, TileCodes<kCodes>{});
  }
  return with_type(params.element, [&](auto type) {
    return needs_decoding(params.latents) ? launch(type, LatentCodes{})
                                          : launch(type, LatentNumbers{});
  });
}

}  // namespace kvc
