// Attention to one residual slot, whose key and value are float32, beside a warp's tiles.
#pragma once

#include "runtime/kernels/cuda/budget_part.h"

namespace kvc {

template <int kHeadDim, int kQueryTiles>
struct WarpSums {
  WarpSoftmax<kQueryTiles> softmax;
  ValueSums<kHeadDim, kQueryTiles> values[1] = {};
};

struct ResidualSlot {
  const float *key, *value;  // [head_dim]
  float bias;                // of its products
};

// All lanes of a warp call it, before finish_sums().
template <class T, int kHeadDim, int kQueryTiles, class Thread>
KVC_DEVICE void add_slot(Thread& thread, const BudgetStep& params, const ResidualSlot& slot,
                         const QueryFragments<kHeadDim, kQueryTiles>& query,
                         WarpSums<kHeadDim, kQueryTiles>& sums) {
  const int lane = thread.lane();
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    float product = 0;  // of head lane / 4, first with every fourth pair of channels
    KVC_UNROLL
    for (int k = 0; k < kHeadDim / 16; ++k) {
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float* pair = slot.key + 16 * k + 8 * i + 2 * (lane % 4);
        product += low_of_pair<T>(query.b[k][n][i]) * pair[0];
        product += high_of_pair<T>(query.b[k][n][i]) * pair[1];
      }
    }
    product += thread.shuffle_xor(product, 1);
    product += thread.shuffle_xor(product, 2);
    const float score = scaled_score(product, params.scale, params.softcap) + slot.bias;
    float factor[2], weight[2];
    KVC_UNROLL
    for (int q = 0; q < 2; ++q) {
      SoftmaxState& state = sums.softmax.state[n][q];
      const float own = thread.shuffle(score, 4 * (2 * (lane % 4) + q));
      factor[q] = raise_max(state, own);
      weight[q] = exp_below(own, state.max);
      state.sum += lane < 4 ? weight[q] : 0.0f;  // finish_sums() adds lanes
    }
    KVC_UNROLL
    for (int m = 0; m < kHeadDim / 16; ++m) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& sum = sums.values[0].c[m][n][i];
        sum = factor[i % 2] * sum + weight[i % 2] * slot.value[16 * m + lane / 4 + 8 * (i / 2)];
      }
    }
  }
}

}  // namespace kvc
