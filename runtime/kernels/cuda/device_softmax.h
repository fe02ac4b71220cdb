// The arithmetic of a softmax that is summed part by part.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/device_qualifiers.h"

namespace kvc {

constexpr float kLog2E = 1.44269504088896340736f;

KVC_HOST_DEVICE float negative_infinity() { return -INFINITY; }

// exp(x - max); 0 for parts without any token, whose max is -infinity.
KVC_HOST_DEVICE float exp_below(float x, float max) {
  return x == negative_infinity() ? 0.0f : exp2f((x - max) * kLog2E);
}

// Scores x, once scaled, become cap tanh(x / cap); cap 0: none.
KVC_HOST_DEVICE float scaled_score(float product, float scale, float softcap) {
  const float score = product * scale;
  return softcap == 0 ? score : softcap * tanhf(score / softcap);
}

// Sums of exponentials below a running maximum.
struct SoftmaxState {
  float max = negative_infinity();
  float sum = 0;
};

// `state` goes over to a larger maximum; returns the factor of what was summed before.
KVC_HOST_DEVICE float raise_max(SoftmaxState& state, float max) {
  const float larger = max > state.max ? max : state.max;
  const float factor = exp_below(state.max, larger);
  state.max = larger;
  state.sum *= factor;
  return factor;
}

// `total` becomes the softmax of both. Returns the factors of what was summed under `total` and `part`.
struct SoftmaxFactors {
  float total, part;
};
KVC_HOST_DEVICE SoftmaxFactors combine_softmax(SoftmaxState& total, const SoftmaxState& part) {
  const float factor = raise_max(total, part.max);
  const float other = exp_below(part.max, total.max);
  total.sum += other * part.sum;
  return {factor, other};
}

// Rows of one part where `count` rows in tiles of `tile` are shared by `parts` blocks: whole tiles, as evenly as
// may be, the first parts one tile more. Parts may be empty.
struct PartRange {
  int first, last;
};
KVC_HOST_DEVICE PartRange split_rows(int first_row, int num_rows, int tile, int parts, int part) {
  const int begin_tile = first_row / tile, tiles = (num_rows + tile - 1) / tile - begin_tile;
  const int most = tiles > 0 ? tiles : 0, each = most / parts, more = most % parts;
  const int first = begin_tile + part * each + (part < more ? part : more);
  const int last = first + each + (part < more ? 1 : 0);
  const int first_of_part = first * tile > first_row ? first * tile : first_row;
  const int last_of_part = last * tile < num_rows ? last * tile : num_rows;
  return {first_of_part, last_of_part};
}

// The same of what a launch of attention has of a sequence.
template <class Params>
KVC_HOST_DEVICE PartRange split_rows(const Params& params, int sequence, int tile, int part) {
  return split_rows(params.first_rows == nullptr ? 0 : params.first_rows[sequence],
                    params.num_rows[sequence], tile, params.partials.num_parts, part);
}

}  // namespace kvc
