// What attention_one_pass_kernel.h keeps from group to group of tokens: softmaxes, and sums of latents.
#pragma once

#include "runtime/kernels/cuda/attention_one_pass.h"
#include "runtime/kernels/cuda/attention_rank_source.h"

namespace kvc {

// The part's tokens, in groups of one_pass_tiles() tiles.
struct OnePassTokens {
  PartRange range;
  int first_group, groups;

  KVC_HOST_DEVICE bool has(int tile) const {
    return tile * kTileRows < range.last && (tile + 1) * kTileRows > range.first;
  }
  KVC_HOST_DEVICE bool has_row(int row) const { return row < range.last && has(row / kTileRows); }
};
KVC_HOST_DEVICE OnePassTokens one_pass_tokens(const RankAttention& params, const OnePassLayout& at,
                                              int sequence, int part) {
  const int rows = at.tiles * kTileRows;
  const PartRange range = split_rows(params, sequence, rows, part);
  const int first = range.first / rows;
  const int last = range.first < range.last ? (range.last + rows - 1) / rows : first;
  return {range, first, last - first};
}

// A token's latents from `column` on.
KVC_HOST_DEVICE const std::uint16_t* latents_at(const RankAttention& params, int sequence, int row,
                                                int column) {
  return reinterpret_cast<const std::uint16_t*>(
      row_place(params.latents, sequence, row, column).channels);
}

// Between two groups, by a thread for each query head: the softmax over all tokens so far.
struct OnePassMaxima {
  float *max, *sum, *factor;         // [tiles, heads] of tiles
  float *raise, *all_max, *all_sum;  // [heads]
  int tiles, heads;
};
KVC_HOST_DEVICE OnePassMaxima one_pass_maxima(const OnePassLayout& at, int tiles, int heads,
                                              std::uint8_t* shared) {
  auto* max = reinterpret_cast<float*>(shared + at.maxima);
  float* raise = max + 3 * tiles * heads;
  return {max,
          max + tiles * heads,
          max + 2 * tiles * heads,
          raise,
          raise + heads,
          raise + 2 * heads,
          tiles,
          heads};
}
KVC_HOST_DEVICE void raise_group(const OnePassTokens& tokens, int first_tile, int head,
                                 const OnePassMaxima& maxima) {
  SoftmaxState state{maxima.all_max[head], maxima.all_sum[head]};
  float largest = state.max;
  for (int tile = 0; tile < maxima.tiles; ++tile) {
    const float max = tokens.has(first_tile + tile) ? maxima.max[tile * maxima.heads + head]
                                                    : negative_infinity();
    largest = max > largest ? max : largest;
  }
  maxima.raise[head] = raise_max(state, largest);
  for (int tile = 0; tile < maxima.tiles; ++tile) {
    const int at = tile * maxima.heads + head;
    const bool is_there = tokens.has(first_tile + tile);
    const float factor = is_there ? exp_below(maxima.max[at], largest) : 0.0f;
    maxima.factor[at] = factor;
    state.sum += is_there ? maxima.sum[at] * factor : 0.0f;
  }
  maxima.all_max[head] = state.max;
  maxima.all_sum[head] = state.sum;
}

// A warp's sums of latents, by query heads.
template <int kQueryTiles>
struct RankSums {
  float c[kOnePassRankTiles][kQueryTiles][4];
};

template <int kQueryTiles>
KVC_DEVICE void raise_sums(const float* raise, int num_heads, int lane,
                           RankSums<kQueryTiles>& sums) {
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int head = 8 * n + 2 * (lane % 4) + i;
      const float factor = head < num_heads ? raise[head] : 1.0f;
      KVC_UNROLL
      for (int m = 0; m < kOnePassRankTiles; ++m) {
        sums.c[m][n][i] *= factor;
        sums.c[m][n][i + 2] *= factor;
      }
    }
  }
}

// sums += latents^T weights of 16 tokens. words: of the first head, at the 16 tokens; factor: of the tile, per head.
template <class T, int kQueryTiles, class Thread>
KVC_DEVICE void add_ranks(Thread& thread, const T* latents, const OnePassLayout& at,
                          const std::uint32_t* words, const float* factor, int num_heads,
                          RankSums<kQueryTiles>& sums) {
  const int lane = thread.lane();
  std::uint32_t b[kQueryTiles][2];
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    const int head = 8 * n + lane / 4;
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      b[n][i] = 0;
      if (head < num_heads) {
        const std::uint32_t pair = words[head * (kChunkStride / 2) + 4 * i + lane % 4];
        b[n][i] =
            pack_pair<T>(low_of_pair<T>(pair) * factor[head], high_of_pair<T>(pair) * factor[head]);
      }
    }
  }
  KVC_UNROLL
  for (int m = 0; m < kOnePassRankTiles; ++m) {
    if (m < at.rank_tiles) {
      std::uint32_t a[4];
      thread.load_matrices_transposed(
          a, transposed_left_side(latents, at.value_stride, 0, 16 * m, lane));
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        thread.multiply_add(T{}, sums.c[m][n], a, b[n]);
      }
    }
  }
}

}  // namespace kvc
