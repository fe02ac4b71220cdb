// What a block of attention over codes keeps in shared memory.
#pragma once

#include "runtime/kernels/cuda/attention_codes.h"
#include "runtime/kernels/cuda/attention_tiles.h"
#include "runtime/kernels/cuda/code_planes.h"

namespace kvc {

// Fragments' rows as tokens: row lane / 4 + 8 half of products m is this one of the tile's. Then a weight's fragment has,
// side by side, the tokens that unpack_levels() pairs.
struct CodedTokens {
  static KVC_HOST_DEVICE int token(int m, int half, int lane) {
    return 4 * (lane / 4) + 2 * m + half;
  }
};

// Groups of keys of one width.
struct KeyWidth {
  int groups;
  int byte;  // the first one's
};

// A block's shared memory. Keys that are not turned are taken in steps, two groups of one width at a time.
//   groups    [key groups + value groups] CodeGroup
//   kinds     [value groups / 2] int: plane_kinds() that a pair of groups has; 16-byte aligned behind
//   parts     [value groups / 2, kPlaneKinds, 8 rows, 2] int: where a row's planes of either group lie behind those of the values
//   scales    [2, heads] float: of codes, of means; [heads]: what codes' sums are behind levels', in units of the scale
//   gains     [kGainIndices] float
//   turns     [turned groups, 32 lanes, 8] words: cosines and sines of a lane's rows and tokens, as fragments
//   angles    [turned groups, 8] int
//   widths    [kMostCodeBits] KeyWidth: of 1 bit first
//   query     [heads, head_dim] as it is
//   largest   float: of 32 channels of the query each [heads, head_dim / 32]; of a warp's rows' weights [2, warps]: codes', means'
//   behind    [warps, heads] float: a warp's share of scales' last row
//   queries   [turned groups, heads, 8, 2] float: a row's products with the query, divided by its head's scale
//   products  [steps, query tiles, 32 lanes, 2] words: of a lane's four coefficients with the query, divided by its head's scale,
//             times 2^key_factor()
//   rings     the warps' tiles; at the end what warps have summed
struct CodedShared {
  static constexpr int kStages = 2;
  // Bytes at the end of a stage's values: a plane that a group does not have.
  static constexpr int kZeros = 32;
  static constexpr int kMostWarps = 4;
  int heads, key_groups, value_groups, mean_groups;
  bool turned;
  int key_bytes, value_bytes, num_angles, query_bytes;

  KVC_HOST_DEVICE CodedShared(const CodedAttention& params, int query_tiles)
      : heads(8 * query_tiles),
        key_groups(most_code_groups(params.codes.count)),
        value_groups(params.values == nullptr ? 0 : most_code_groups(params.head_dim)),
        mean_groups((params.means.count + kGroupCoefficients - 1) / kGroupCoefficients),
        turned(params.turned),
        key_bytes(section(params.most_key_bytes + kGroupOverrun)),
        value_bytes(params.values == nullptr
                        ? 0
                        : section(params.most_value_bytes + kGroupOverrun) + kZeros),
        num_angles(turned_groups() > 0 ? params.num_angles : 0),
        query_bytes(2 * heads * params.head_dim) {}

  static KVC_HOST_DEVICE int section(int bytes) { return (bytes + 15) / 16 * 16; }
  KVC_HOST_DEVICE int turned_groups() const { return mean_groups + (turned ? key_groups : 0); }
  // Every width may have a group without a second one.
  KVC_HOST_DEVICE int steps() const { return turned ? 0 : (key_groups + kMostCodeBits) / 2; }
  KVC_HOST_DEVICE int zeros() const { return value_bytes - kZeros; }
  KVC_HOST_DEVICE int kinds() const { return 16 * (key_groups + value_groups); }
  KVC_HOST_DEVICE int parts() const { return kinds() + section(2 * value_groups); }
  KVC_HOST_DEVICE int scales() const { return parts() + 64 * kPlaneKinds * (value_groups / 2); }
  KVC_HOST_DEVICE int gains() const { return scales() + 12 * heads; }
  KVC_HOST_DEVICE int turns() const { return gains() + 4 * kGainIndices; }
  KVC_HOST_DEVICE int angles() const { return turns() + 1024 * turned_groups(); }
  KVC_HOST_DEVICE int widths() const { return angles() + 32 * turned_groups(); }
  KVC_HOST_DEVICE int query() const { return widths() + 8 * kMostCodeBits; }
  KVC_HOST_DEVICE int largest() const { return query() + query_bytes; }
  KVC_HOST_DEVICE int largest_weights() const { return largest() + query_bytes / 16; }
  KVC_HOST_DEVICE int behind() const { return largest_weights() + 8 * kMostWarps; }
  KVC_HOST_DEVICE int queries() const { return behind() + 4 * kMostWarps * heads; }
  KVC_HOST_DEVICE int products() const { return queries() + 64 * heads * turned_groups(); }
  KVC_HOST_DEVICE int rings() const { return products() + 32 * heads * steps(); }
  // A stage holds keys, values, and cosines and sines of the first token.
  KVC_HOST_DEVICE int stage_bytes() const {
    return key_bytes + value_bytes + section(8 * num_angles);
  }
  KVC_HOST_DEVICE int bytes(int warps) const { return rings() + warps * kStages * stage_bytes(); }
};

template <class T>
KVC_DEVICE T* shared_at(std::uint8_t* shared, int byte) {
  return reinterpret_cast<T*>(shared + byte);
}

}  // namespace kvc
