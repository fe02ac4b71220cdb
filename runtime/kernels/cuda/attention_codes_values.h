// Sums of a tile's coded values.
#pragma once

#include <type_traits>

#include "runtime/kernels/cuda/attention_codes_keys.h"
#include "runtime/kernels/cuda/attention_warps.h"

namespace kvc {

// Sums of weight * gain * code, in units of sum_unit(): rows of products are the coefficients of two groups. And those of
// weight * gain, in all rows.
template <int kPairs, int kQueryTiles>
struct CodeSums {
  float c[kPairs][kQueryTiles][4];
  float weights[kQueryTiles][4];
};

// Weights of 32 tokens, times what the fields of every kind of plane are short of.
template <int kQueryTiles>
struct PlaneWeights {
  std::uint32_t b[kPlaneKinds][kQueryTiles][4];
};

// Weights times gains. gains: of the tile's tokens
template <int kQueryTiles, class Thread>
KVC_DEVICE void multiply_gains(Thread& thread, const CodedShared& shared, const std::uint8_t* gains,
                               WeightFragments<kQueryTiles>& weights) {
  const auto* of_index = shared_at<float>(thread.shared(), shared.gains());
  const std::uint32_t* words =  // 4-byte aligned
      reinterpret_cast<const std::uint32_t*>(gains) + 2 * (thread.lane() % 4);
  const std::uint32_t of_first = words[0], of_second = words[1];
  KVC_UNROLL
  for (int j = 0; j < 4; ++j) {  // tokens j and 4 + j of the lane's eight
    const float first = gain_of_token(of_index, of_first, j);
    const float second = gain_of_token(of_index, of_second, j);
    KVC_UNROLL
    for (int n = 0; n < kQueryTiles; ++n) {
      std::uint32_t& pair = weights.b[j / 2][n][j % 2];
      pair = pack_pair<Float16>(low_of_pair<Float16>(pair) * first,
                                high_of_pair<Float16>(pair) * second);
    }
  }
}

// The lane's rows of two groups' planes of one kind: coefficient_fields() of each.
struct PlaneFields {
  std::uint32_t of[2][4];
};
// parts: where the rows lie
template <int kKind, class Thread>
KVC_DEVICE void load_plane(const Thread& thread, const std::uint32_t (&parts)[2],
                           const std::uint8_t* values, PlaneFields& to) {
  constexpr int kPlane = plane_bits(kKind);
  KVC_UNROLL
  for (int i = 0; i < 2; ++i) {
    coefficient_fields<kPlane>(values + kPlane * (thread.lane() % 4) + parts[i], to.of[i]);
  }
}

// sums += the planes' codes with their weights, of half `k` of the tokens.
template <int kKind, int kQueryTiles, class Thread>
KVC_DEVICE void add_plane(Thread& thread, const PlaneFields& fields, int k,
                          const PlaneWeights<kQueryTiles>& weights, float (&sums)[kQueryTiles][4]) {
  const std::uint32_t a[4] = {fields.of[0][2 * k], fields.of[1][2 * k], fields.of[0][2 * k + 1],
                              fields.of[1][2 * k + 1]};
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    const std::uint32_t b[2] = {weights.b[kKind][n][2 * k], weights.b[kKind][n][2 * k + 1]};
    thread.multiply_add(Float16{}, sums[n], a, b);
  }
}

// use(std::integral_constant) of every kind, in order.
template <class Use>
KVC_DEVICE void with_kinds(const Use& use) {
  use(std::integral_constant<int, kind_in_order(0)>{});
  use(std::integral_constant<int, kind_in_order(1)>{});
  use(std::integral_constant<int, kind_in_order(2)>{});
  use(std::integral_constant<int, kind_in_order(3)>{});
  use(std::integral_constant<int, kind_in_order(4)>{});
}

// sums = factors * sums + codes of the tile with their weights.
template <int kPairs, int kQueryTiles, class Thread>
KVC_DEVICE void add_codes(Thread& thread, const CodedShared& shared, int num_groups,
                          const std::uint8_t* values, const RaiseFactors<kQueryTiles>& raised,
                          const WeightFragments<kQueryTiles>& weights,
                          CodeSums<kPairs, kQueryTiles>& sums) {
  constexpr std::uint32_t kOnes[4] = {0x3C003C00u, 0x3C003C00u, 0x3C003C00u, 0x3C003C00u};
  PlaneWeights<kQueryTiles> of_kind;
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    raise_sums(raised, n, sums.weights[n]);
    KVC_UNROLL
    for (int k = 0; k < 2; ++k) {
      thread.multiply_add(Float16{}, sums.weights[n], kOnes, weights.b[k][n]);
    }
    KVC_UNROLL
    for (int kind = 0; kind < kPlaneKinds; ++kind) {
      KVC_UNROLL
      for (int j = 0; j < 4; ++j) {
        const auto factor = static_cast<float>(1 << field_factor(kind, j));
        of_kind.b[kind][n][j] =
            multiply_pairs(weights.b[j / 2][n][j % 2], pack_pair<Float16>(factor, factor));
      }
    }
  }
  const auto* kinds_of = shared_at<int>(thread.shared(), shared.kinds());
  const auto* parts_of =
      shared_at<std::uint32_t>(thread.shared(), shared.parts()) + 2 * (thread.lane() / 4);
  // Two pairs together, mostly of the same widths, so that products that wait for one another are half as many; a plane that
  // one of them does not have is zeros.
  static_assert(kPairs % 2 == 0);
  KVC_UNROLL
  for (int pair = 0; pair < kPairs; pair += 2) {
    if (2 * pair < num_groups) {
      const int kinds = kinds_of[pair] | kinds_of[pair + 1];
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        raise_sums(raised, n, sums.c[pair][n]);
        raise_sums(raised, n, sums.c[pair + 1][n]);
      }
      with_kinds([&](auto of_plane) {
        constexpr int kKind = decltype(of_plane)::value;
        if ((kinds & 1 << kKind) != 0) {
          PlaneFields fields[2];
          KVC_UNROLL
          for (int i = 0; i < 2; ++i) {
            std::uint32_t parts[2];
            two_words(parts_of + 16 * (kPlaneKinds * (pair + i) + kKind), parts);
            load_plane<kKind>(thread, parts, values, fields[i]);
          }
          KVC_UNROLL
          for (int k = 0; k < 2; ++k) {
            add_plane<kKind>(thread, fields[0], k, of_kind, sums.c[pair]);
            add_plane<kKind>(thread, fields[1], k, of_kind, sums.c[pair + 1]);
          }
        }
      });
    }
  }
}

// Shared memory of merge_codes() behind what stays: softmaxes, sums of weights, and sums of all warps.
KVC_HOST_DEVICE int merge_codes_bytes(const CodedShared& shared, int pairs, int warps) {
  return warps * shared.heads * (16 * pairs + 3) * 4;
}

// The first of a KV head's rows of the partials.
template <class Thread>
KVC_DEVICE std::int64_t first_partial(const Thread& thread, const CodedAttention& params) {
  return params.partials.row(thread.block_z(), thread.block_x(), params.num_heads,
                             thread.block_y() * (params.num_heads / params.num_kv_heads));
}

// A part without tokens, whose output nobody reads.
template <class Thread>
KVC_DEVICE void write_no_tokens(Thread& thread, const CodedAttention& params) {
  const std::int64_t first_row = first_partial(thread, params);
  for (int head = thread.index(); head < params.num_heads / params.num_kv_heads;
       head += thread.count()) {
    params.partials.max[first_row + head] = negative_infinity();
    params.partials.sum[first_row + head] = 0;
  }
}

// All warps' sums, below one maximum, to the partials.
template <int kPairs, int kQueryTiles, class Thread>
KVC_DEVICE void merge_codes(Thread& thread, const CodedAttention& params, const DeviceTiles& values,
                            const CodedShared& shared, const WarpSoftmax<kQueryTiles>& softmax,
                            const CodeSums<kPairs, kQueryTiles>& sums) {
  constexpr int kHeads = 8 * kQueryTiles, kRows = 16 * kPairs;
  auto* states = shared_at<SoftmaxState>(thread.shared(), shared.rings());  // [warps, heads]
  const int warps = thread.count() / 32, lane = thread.lane();
  auto* weights = reinterpret_cast<float*>(states + warps * kHeads);  // [warps, heads] sums
  float* outputs = weights + warps * kHeads;                          // [warps, heads, kRows]
  thread.sync();
  write_warp(thread, softmax, states, [&](int n, int i, int row) {
    if (lane < 4 && i < 2) {
      weights[row] = sums.weights[n][i];
    }
    float* output = outputs + row * kRows + lane / 4 + 8 * (i / 2);
    KVC_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      output[16 * pair] = sums.c[pair][n][i];
    }
  });
  thread.sync();
  const int group = params.num_heads / params.num_kv_heads;
  const std::int64_t first_row = first_partial(thread, params);
  // Each warp's factor takes its maximum's place, and the first one's sum of weights that of all.
  for (int head = thread.index(); head < group; head += thread.count()) {
    float max = negative_infinity(), sum = 0, weight = 0;
    for (int warp = 0; warp < warps; ++warp) {
      max = fmaxf(max, states[warp * kHeads + head].max);
    }
    for (int warp = 0; warp < warps; ++warp) {
      SoftmaxState& state = states[warp * kHeads + head];
      state.max = exp_below(state.max, max);
      sum += state.max * state.sum;
      weight += state.max * weights[warp * kHeads + head];
    }
    weights[head] = weight;
    params.partials.max[first_row + head] = max;
    params.partials.sum[first_row + head] = sum;
  }
  thread.sync();
  const auto* groups = shared_at<CodeGroup>(thread.shared(), 0) + shared.key_groups;
  KVC_NO_UNROLL
  for (int row = thread.index(); row < kGroupCoefficients * shared.value_groups;
       row += thread.count()) {
    const CodeGroup of = groups[row / kGroupCoefficients];
    if (row % kGroupCoefficients >= of.count) {
      continue;
    }
    const float unit = sum_unit(of.bits), level = first_code_level(of.bits);
    float* to = params.partials.output + first_row * params.sums_width + of.first +
                row % kGroupCoefficients;
    KVC_NO_UNROLL
    for (int head = 0; head < group; ++head) {
      float output = 0;
      KVC_UNROLL_BY_4
      for (int warp = 0; warp < warps; ++warp) {
        const int from = warp * kHeads + head;
        output += states[from].max * outputs[from * kRows + row];
      }
      to[head * params.sums_width] = unit * output + level * weights[head];
    }
  }
  const int behind = params.sums_width - values.num_coefficients;
  KVC_NO_UNROLL
  for (int i = thread.index(); i < group * behind; i += thread.count()) {
    params.partials.output[(first_row + i / behind) * params.sums_width + values.num_coefficients +
                           i % behind] = 0;
  }
}

}  // namespace kvc
