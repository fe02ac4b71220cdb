// RoPE of keys that are rebuilt tile by tile. For position p0 + j, the tile's first position and a token's
// distance to it, the query is rotated back by p0 and the key by j, so the angles of keys are the same in
// every tile. Tokens at other than consecutive positions rotate by their own, and the query by position 0.
#if defined(KVC_RUNTIME_KERNELS_TILE_ROPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_TILE_ROPE_INL_H_
#undef KVC_RUNTIME_KERNELS_TILE_ROPE_INL_H_
#else
#define KVC_RUNTIME_KERNELS_TILE_ROPE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/decode_attention.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// Channels of a pair.
inline std::int64_t first_of(const RopeAngles& rope, std::int64_t pair) {
  return rope.interleaved ? 2 * pair : pair;
}
inline std::int64_t second_of(const RopeAngles& rope, std::int64_t pair) {
  return rope.interleaved ? 2 * pair + 1 : pair + rope.num_pairs;
}

// Cosines and then sines of a tile's tokens, [2, pairs, kTileTokens]: of positions 0 .. kTileTokens - 1 by
// default.
class TileTurns {
 public:
  explicit TileTurns(const RopeAngles& rope)
      : rope_(rope), angles_(static_cast<std::size_t>(2 * rope.num_pairs * kTileTokens)) {
    std::int32_t first[kTileTokens];
    for (std::int64_t token = 0; token < kTileTokens; ++token) {
      first[token] = static_cast<std::int32_t>(token);
    }
    set(first);
  }

  // positions: [kTileTokens]
  void set(const std::int32_t* positions) {
    float* to = angles_.data();
    for (const float* table : {rope_.cos, rope_.sin}) {
      for (std::int64_t pair = 0; pair < rope_.num_pairs; ++pair) {
        for (std::int64_t token = 0; token < kTileTokens; ++token) {
          *to++ = table[positions[token] * rope_.num_pairs + pair];
        }
      }
    }
  }
  const float* cos(std::int64_t pair) const { return angles_.data() + pair * kTileTokens; }
  const float* sin(std::int64_t pair) const { return cos(pair + rope_.num_pairs); }

 private:
  RopeAngles rope_;
  AlignedVector<float> angles_;
};

// A pair of vectors, rotated back and scaled.
template <class D, class V>
HWY_INLINE void turn_back(D d, float scale, V cos, V sin, const float* first, const float* second,
                          float* to_first, float* to_second) {
  const V c = hn::Mul(cos, hn::Set(d, scale)), s = hn::Mul(sin, hn::Set(d, scale));
  const V a = hn::LoadU(d, first), b = hn::LoadU(d, second);
  hn::StoreU(hn::MulAdd(a, c, hn::Mul(b, s)), d, to_first);
  hn::StoreU(hn::NegMulAdd(a, s, hn::Mul(b, c)), d, to_second);
}

// The scaled query of a head, rotated back by `position`. All angles contain one factor, which the keys'
// have already. to: [head_dim]
inline void turn_query_back(const DecodeAttentionParams& params, const RopeAngles& rope,
                            std::int64_t head, std::int64_t position, float* to) {
  const float* query = params.query + head * params.head_dim;
  for (std::int64_t channel = 2 * rope.num_pairs; channel < params.head_dim; ++channel) {
    to[channel] = params.scale * query[channel];
  }
  const float scale = rope.num_pairs == 0 ? 1 : params.scale / rope.cos[0];
  const float* cos = rope.cos + position * rope.num_pairs;
  const float* sin = rope.sin + position * rope.num_pairs;
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t pair = 0;
  for (; !rope.interleaved && pair + lanes <= rope.num_pairs; pair += lanes) {
    const std::int64_t second = pair + rope.num_pairs;
    turn_back(d, scale, hn::LoadU(d, cos + pair), hn::LoadU(d, sin + pair), query + pair,
              query + second, to + pair, to + second);
  }
  for (; pair < rope.num_pairs; ++pair) {
    const std::int64_t first = first_of(rope, pair), second = second_of(rope, pair);
    turn_back(one, scale, hn::Set(one, cos[pair]), hn::Set(one, sin[pair]), query + first,
              query + second, to + first, to + second);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
