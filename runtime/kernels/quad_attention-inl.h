// Four query heads over a tile of keys and values: scores, running softmax, weighted sums.
#if defined(KVC_RUNTIME_KERNELS_QUAD_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_QUAD_ATTENTION_INL_H_
#undef KVC_RUNTIME_KERNELS_QUAD_ATTENTION_INL_H_
#else
#define KVC_RUNTIME_KERNELS_QUAD_ATTENTION_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/kernels/exp-inl.h"
#include "runtime/kernels/query_quads.h"
#include "runtime/kernels/read_ahead.h"
#include "runtime/kernels/row_sources-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t kTileRows = 64;  // keys and values of a tile stay in L1 or L2
inline constexpr std::int64_t kScores = kTileRows * kQuad;

// Sums of four vectors as the four lanes of one 128-bit vector.
template <class D>
auto fold_blocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    (void)d;
    return v;
  } else {
    const hn::Half<D> half;
    return fold_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
template <class D>
void store_sums(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e, float* to) {
  const hn::Repartition<double, D> pairs;
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto low = hn::InterleaveLower(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, ce));
  const auto high = hn::InterleaveUpper(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, ce));
  const auto sums = fold_blocks(d, hn::Add(hn::BitCast(d, low), hn::BitCast(d, high)));
  hn::StoreU(sums, hn::CappedTag<float, 4>(), to);
}

// Scores of kTokens rows from `row` on. scores: [kTokens, kQuad].
template <int kTokens, class Source>
HWY_INLINE void score_rows(const Source& keys, const float* query, std::int64_t width,
                           std::int64_t row, float* scores) {
  const Wide d;
  Vec sums[kTokens][kQuad];
  for (auto& of_token : sums) {
    for (Vec& sum : of_token) {
      sum = hn::Zero(d);
    }
  }
  const std::int64_t lanes = wide_lanes(), steps = width / (2 * lanes);
  for (std::int64_t step = 0; step < steps; ++step) {
    Vec k[kTokens][2];
    for (int token = 0; token < kTokens; ++token) {
      keys.load_pair(row + token, step, k[token]);
    }
    for (std::int64_t q = 0; q < kQuad; ++q) {
      const float* from = query + q * width + 2 * step * lanes;
      const Vec q0 = hn::LoadU(d, from), q1 = hn::LoadU(d, from + lanes);
      for (int token = 0; token < kTokens; ++token) {
        sums[token][q] = hn::MulAdd(q0, k[token][0], sums[token][q]);
        sums[token][q] = hn::MulAdd(q1, k[token][1], sums[token][q]);
      }
    }
  }
  for (int token = 0; token < kTokens; ++token) {
    store_sums(d, sums[token][0], sums[token][1], sums[token][2], sums[token][3],
               scores + token * kQuad);
  }
}

// scores: [count, kQuad]; `width` channels, a whole number of vector pairs.
template <class Source>
void score_tile(const Source& keys, const float* query, std::int64_t width, std::int64_t count,
                float* scores, ReadAhead& ahead) {
  constexpr int kTokens = hn::MaxLanes(Wide()) >= 16 ? 4 : 2;  // as many sums as registers hold
  const std::int64_t bytes = kTokens * keys.step_bytes() * (width / (2 * wide_lanes()));
  std::int64_t row = 0;
  for (; row + kTokens <= count; row += kTokens) {
    ahead.fetch(bytes);
    score_rows<kTokens>(keys, query, width, row, scores + row * kQuad);
  }
  for (; row < count; ++row) {
    score_rows<1>(keys, query, width, row, scores + row * kQuad);
  }
}

// Scores x become softcap * tanh(x / softcap).
inline void cap_scores(float softcap, std::int64_t count, float* scores) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < count * kQuad; i += lanes) {
    hn::StoreU(cap_score(d, hn::LoadU(d, scores + i), softcap), d, scores + i);
  }
}

// Factor of earlier sums under a tile's new maximum.
struct Rescale {
  float factors[kQuad];
};

// To the nearest bfloat16 number.
HWY_INLINE Vec round_to_bfloat16(Vec x) {
  const hn::Repartition<std::uint32_t, Wide> d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7FFF)));
  return hn::BitCast(Wide(), hn::And(rounded, hn::Set(d, 0xFFFF0000u)));
}

// Turns scores [count, kQuad] into weights exp(score - max), in bfloat16 if requested; sums are then of
// rounded weights. Zeros follow up to a whole vector.
inline Rescale exponentiate(QuadSoftmax& softmax, std::int64_t count, bool in_bfloat16,
                            float* scores) {
  const Wide d;
  const hn::CappedTag<float, 4> d4;
  const std::int64_t lanes = wide_lanes(), size = count * kQuad;
  const std::int64_t padded = (size + lanes - 1) / lanes * lanes;
  std::fill(scores + size, scores + padded, -INFINITY);
  Vec wide = hn::LoadDup128(d, softmax.max);
  for (std::int64_t i = 0; i < padded; i += lanes) {
    wide = hn::Max(wide, hn::LoadU(d, scores + i));
  }
  HWY_ALIGN float folded[hn::MaxLanes(d)];
  hn::StoreU(wide, d, folded);
  auto largest = hn::LoadU(d4, folded);
  for (std::int64_t i = kQuad; i < lanes; i += kQuad) {
    largest = hn::Max(largest, hn::LoadU(d4, folded + i));
  }
  const auto scale = hn::Exp(d4, hn::Sub(hn::LoadU(d4, softmax.max), largest));
  Rescale rescale;
  hn::StoreU(scale, d4, rescale.factors);
  hn::StoreU(largest, d4, softmax.max);
  const Vec subtracted = hn::LoadDup128(d, softmax.max);
  Vec sum = hn::Zero(d);
  for (std::int64_t i = 0; i < padded; i += lanes) {
    Vec e = exp_below_zero(d, hn::Sub(hn::LoadU(d, scores + i), subtracted));
    e = in_bfloat16 ? round_to_bfloat16(e) : e;
    hn::StoreU(e, d, scores + i);
    sum = hn::Add(sum, e);
  }
  hn::StoreU(hn::MulAdd(hn::LoadU(d4, softmax.sum), scale, fold_blocks(d, sum)), d4, softmax.sum);
  return rescale;
}

inline void apply(const Rescale& rescale, std::int64_t width, float* output) {
  const Wide d;
  for (std::int64_t q = 0; q < kQuad; ++q, output += width) {
    if (rescale.factors[q] != 1.0f) {
      const Vec factor = hn::Set(d, rescale.factors[q]);
      for (std::int64_t channel = 0; channel < width; channel += wide_lanes()) {
        hn::StoreU(hn::Mul(hn::LoadU(d, output + channel), factor), d, output + channel);
      }
    }
  }
}

// output[q] += weights[row][q] * value[row], kPairs vector pairs of channels from `step` on.
template <int kPairs, class Source>
HWY_INLINE void accumulate_steps(const Source& values, float* output, std::int64_t width,
                                 std::int64_t step, std::int64_t count, const float* weights,
                                 ReadAhead& ahead) {
  const Wide d;
  const std::int64_t lanes = wide_lanes();
  float* to = output + 2 * step * lanes;
  Vec sums[kQuad][2 * kPairs];
  for (std::int64_t q = 0; q < kQuad; ++q) {
    for (int i = 0; i < 2 * kPairs; ++i) {
      sums[q][i] = hn::LoadU(d, to + q * width + i * lanes);
    }
  }
  for (std::int64_t row = 0; row < count; ++row) {
    ahead.fetch(kPairs * values.step_bytes());
    Vec v[kPairs][2];
    for (int pair = 0; pair < kPairs; ++pair) {
      values.load_pair(row, step + pair, v[pair]);
    }
    for (std::int64_t q = 0; q < kQuad; ++q) {
      const Vec weight = hn::Set(d, weights[row * kQuad + q]);
      for (int pair = 0; pair < kPairs; ++pair) {
        sums[q][2 * pair] = hn::MulAdd(weight, v[pair][0], sums[q][2 * pair]);
        sums[q][2 * pair + 1] = hn::MulAdd(weight, v[pair][1], sums[q][2 * pair + 1]);
      }
    }
  }
  for (std::int64_t q = 0; q < kQuad; ++q) {
    for (int i = 0; i < 2 * kPairs; ++i) {
      hn::StoreU(sums[q][i], d, to + q * width + i * lanes);
    }
  }
}

// The same for `steps` vector pairs.
template <class Source>
void accumulate_tile(const Source& values, float* output, std::int64_t width, std::int64_t steps,
                     std::int64_t count, const float* weights, ReadAhead& ahead) {
  constexpr int kPairs = hn::MaxLanes(Wide()) >= 16 ? 2 : 1;
  std::int64_t step = 0;
  for (; step + kPairs <= steps; step += kPairs) {
    accumulate_steps<kPairs>(values, output, width, step, count, weights, ahead);
  }
  for (; step < steps; ++step) {
    accumulate_steps<1>(values, output, width, step, count, weights, ahead);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
