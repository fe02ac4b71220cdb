// Products of one warp with a tile of 32 tokens in shared memory: scores and sums of values. Tokens are the rows
// of the scores' product and the channels those of the values', so that eight query heads fill a product.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/device_softmax.h"

namespace kvc {

constexpr int kTileRows = 32;
constexpr int kPadding =
    8;  // numbers behind each row of a tile, so that matrix loads meet no bank twice

// Query heads, eight each, as right sides of products with keys: [channels / 16][query tiles][2].
template <int kWidth, int kQueryTiles>
struct QueryFragments {
  std::uint32_t b[kWidth / 16][kQueryTiles][2];
};

// For a warp: tokens by query heads, and running softmaxes of its lane's query heads 2 (lane % 4) and the next.
template <int kQueryTiles>
struct ScoreTile {
  float s[2][kQueryTiles][4];
};
template <int kQueryTiles>
struct WarpSoftmax {
  SoftmaxState state[kQueryTiles][2];
};
// Weights of 32 tokens as right sides of products with values: [16 tokens each][query tiles][2].
template <int kQueryTiles>
struct WeightFragments {
  std::uint32_t b[2][kQueryTiles][2];
};

// Address of the lane's row for load_matrices: a left side whose rows are a tile's rows from `row` on, its
// columns the tile's columns from `column` on.
template <class T>
KVC_DEVICE const T* left_side(const T* tile, int stride, int row, int column, int lane) {
  return tile + (row + lane % 8 + 8 * (lane / 8 % 2)) * stride + column + 8 * (lane / 16);
}
// For load_matrices_transposed: a left side whose rows are a tile's columns from `column` on, its columns the
// tile's rows from `row` on.
template <class T>
KVC_DEVICE const T* transposed_left_side(const T* tile, int stride, int row, int column, int lane) {
  return tile + (row + lane % 8 + 8 * (lane / 16)) * stride + column + 8 * (lane / 8 % 2);
}

// scores += keys queries^T; keys: [32, kWidth] of `kWidth + kPadding` numbers a row.
template <class T, int kWidth, int kQueryTiles, class Thread>
KVC_DEVICE void add_scores(Thread& thread, const T* keys,
                           const QueryFragments<kWidth, kQueryTiles>& query,
                           ScoreTile<kQueryTiles>& scores) {
  KVC_UNROLL
  for (int k = 0; k < kWidth / 16; ++k) {
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      std::uint32_t a[4];
      thread.load_matrices(a, left_side(keys, kWidth + kPadding, 16 * m, 16 * k, thread.lane()));
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        thread.multiply_add(T{}, scores.s[m][n], a, query.b[k][n]);
      }
    }
  }
}

// Factors of what was summed under the old maxima.
template <int kQueryTiles>
struct RaiseFactors {
  float factor[kQueryTiles][2];
};

// Which token of the tile a product's row is: row lane / 4 + 8 half of products m.
struct RowTokens {
  static KVC_HOST_DEVICE int token(int m, int half, int lane) {
    return 16 * m + lane / 4 + 8 * half;
  }
};

// Scaled scores of tokens first .. last - 1 of the tile become weights below the raised maxima.
template <class T, class Tokens = RowTokens, int kQueryTiles, class Thread>
KVC_DEVICE RaiseFactors<kQueryTiles> soften(Thread& thread, ScoreTile<kQueryTiles>& scores,
                                            float scale, float softcap, int first, int last,
                                            WarpSoftmax<kQueryTiles>& softmax,
                                            WeightFragments<kQueryTiles>& weights) {
  RaiseFactors<kQueryTiles> raised;
  const bool all = first <= 0 && last >= kTileRows;
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores.s[m][n][i] *= scale;
      }
    }
    if (softcap != 0) {
      KVC_UNROLL
      for (int m = 0; m < 2; ++m) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          scores.s[m][n][i] = scaled_score(scores.s[m][n][i], 1, softcap);
        }
      }
    }
    if (!all) {
      KVC_UNROLL
      for (int m = 0; m < 2; ++m) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int token = Tokens::token(m, i / 2, thread.lane());
          if (token < first || token >= last) {
            scores.s[m][n][i] = negative_infinity();
          }
        }
      }
    }
    float largest[2] = {negative_infinity(), negative_infinity()}, base[2];
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        largest[i % 2] = fmaxf(largest[i % 2], scores.s[m][n][i]);
      }
    }
    KVC_UNROLL
    for (int q = 0; q < 2; ++q) {
      KVC_UNROLL
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        largest[q] = fmaxf(largest[q], thread.shuffle_xor(largest[q], lanes));
      }
      raised.factor[n][q] = raise_max(softmax.state[n][q], largest[q]);
      // Without any token weights are exp(-infinity - 0).
      base[q] = softmax.state[n][q].max == negative_infinity() ? 0.0f : softmax.state[n][q].max;
    }
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& weight = scores.s[m][n][i];
        weight = exp2f((weight - base[i % 2]) * kLog2E);
        softmax.state[n][i % 2].sum += weight;
      }
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        weights.b[m][n][i] =
            thread.transpose(pack_pair<T>(scores.s[m][n][2 * i], scores.s[m][n][2 * i + 1]));
      }
    }
  }
  return raised;
}

// After the last tile: sums of all lanes.
template <int kQueryTiles, class Thread>
KVC_DEVICE void finish_sums(Thread& thread, WarpSoftmax<kQueryTiles>& softmax) {
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    KVC_UNROLL
    for (int q = 0; q < 2; ++q) {
      KVC_UNROLL
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        softmax.state[n][q].sum += thread.shuffle_xor(softmax.state[n][q].sum, lanes);
      }
    }
  }
}

// Channels by query heads: sums of weight * value.
template <int kWidth, int kQueryTiles>
struct ValueSums {
  float c[kWidth / 16][kQueryTiles][4];
};

// Sums below a query tile's earlier maxima, of its heads in the order of scores, become sums below the new ones.
template <int kQueryTiles>
KVC_DEVICE void raise_sums(const RaiseFactors<kQueryTiles>& raised, int query_tile,
                           float (&sums)[4]) {
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    sums[i] *= raised.factor[query_tile][i % 2];
  }
}

// sums = factor * sums + values^T weights; values: as `keys` of add_scores.
template <class T, int kWidth, int kQueryTiles, class Thread>
KVC_DEVICE void add_values(Thread& thread, const T* values,
                           const WeightFragments<kQueryTiles>& weights,
                           const RaiseFactors<kQueryTiles>& raised,
                           ValueSums<kWidth, kQueryTiles>& sums) {
  KVC_UNROLL
  for (int m = 0; m < kWidth / 16; ++m) {
    KVC_UNROLL
    for (int n = 0; n < kQueryTiles; ++n) {
      raise_sums(raised, n, sums.c[m][n]);
    }
    KVC_UNROLL
    for (int k = 0; k < 2; ++k) {
      std::uint32_t a[4];
      thread.load_matrices_transposed(
          a, transposed_left_side(values, kWidth + kPadding, 16 * k, 16 * m, thread.lane()));
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        thread.multiply_add(T{}, sums.c[m][n], a, weights.b[k][n]);
      }
    }
  }
}

}  // namespace kvc
