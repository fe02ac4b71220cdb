#include "runtime/kernels/decode_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/decode_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
            std::int64_t last, const AttentionPartial& partial) {
  decode_attention_partial_reference(params, segment, first, last, partial);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kBlockTokens = 64;  // keys and values of a block stay in L1 or L2
constexpr std::int64_t kQuad = 4;          // query heads that share one pass over keys and values

template <class D>
hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
hn::Vec<D> load(D d, const hwy::bfloat16_t* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::bfloat16_t, D>(), from));
}
template <class D>
hn::Vec<D> load(D d, const hwy::float16_t* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), from));
}

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

// One KV head's keys and values in a block: token t at t * stride.
template <class T>
struct HeadRows {
  const T* key;
  const T* value;
  std::int64_t stride, head_dim;
};

// Four query heads' running softmax; queries are scaled.
struct Quad {
  const float* query[kQuad];  // [head_dim]
  float max[kQuad];
  float sum[kQuad];
  float* output;  // [kQuad, head_dim]
};

template <class D, class T>
void score_block(D d, const HeadRows<T>& rows, const Quad& quad, std::int64_t first,
                 std::int64_t count, float* scores) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t token = 0; token < count; ++token) {
    const T* key = rows.key + (first + token) * rows.stride;
    auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
    for (std::int64_t channel = 0; channel < rows.head_dim; channel += lanes) {
      const auto k = load(d, key + channel);
      s0 = hn::MulAdd(hn::LoadU(d, quad.query[0] + channel), k, s0);
      s1 = hn::MulAdd(hn::LoadU(d, quad.query[1] + channel), k, s1);
      s2 = hn::MulAdd(hn::LoadU(d, quad.query[2] + channel), k, s2);
      s3 = hn::MulAdd(hn::LoadU(d, quad.query[3] + channel), k, s3);
    }
    store_sums(d, s0, s1, s2, s3, scores + token * kQuad);
  }
}

// Scores [count, kQuad] x become softcap * tanh(x / softcap).
inline void cap(float softcap, std::int64_t count, float* scores) {
  const hn::CappedTag<float, 4> d4;
  const auto limit = hn::Set(d4, softcap), inverse = hn::Set(d4, 1 / softcap);
  for (std::int64_t token = 0; token < count; ++token) {
    float* row = scores + token * kQuad;
    hn::StoreU(hn::Mul(limit, hn::Tanh(d4, hn::Mul(hn::LoadU(d4, row), inverse))), d4, row);
  }
}

// Turns scores [count, kQuad] into exp(score - max) and rescales what was summed under a smaller
// max.
inline void exponentiate(Quad& quad, std::int64_t head_dim, std::int64_t count, float* scores) {
  const hn::CappedTag<float, 4> d4;
  auto largest = hn::LoadU(d4, quad.max);
  for (std::int64_t token = 0; token < count; ++token) {
    largest = hn::Max(largest, hn::LoadU(d4, scores + token * kQuad));
  }
  const auto scale = hn::Exp(d4, hn::Sub(hn::LoadU(d4, quad.max), largest));
  float scales[kQuad];
  hn::StoreU(scale, d4, scales);
  hn::StoreU(largest, d4, quad.max);
  auto sum = hn::Mul(hn::LoadU(d4, quad.sum), scale);
  for (std::int64_t token = 0; token < count; ++token) {
    const auto e = hn::Exp(d4, hn::Sub(hn::LoadU(d4, scores + token * kQuad), largest));
    hn::StoreU(e, d4, scores + token * kQuad);
    sum = hn::Add(sum, e);
  }
  hn::StoreU(sum, d4, quad.sum);
  for (std::int64_t query = 0; query < kQuad; ++query) {
    if (scales[query] != 1.0f) {
      for (std::int64_t channel = 0; channel < head_dim; ++channel) {
        quad.output[query * head_dim + channel] *= scales[query];
      }
    }
  }
}

template <class D, class T>
void accumulate_block(D d, const HeadRows<T>& rows, const Quad& quad, std::int64_t first,
                      std::int64_t count, const float* weights) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t channel = 0; channel < rows.head_dim; channel += lanes) {
    float* out = quad.output + channel;
    auto o0 = hn::LoadU(d, out), o1 = hn::LoadU(d, out + rows.head_dim);
    auto o2 = hn::LoadU(d, out + 2 * rows.head_dim), o3 = hn::LoadU(d, out + 3 * rows.head_dim);
    const T* value = rows.value + first * rows.stride + channel;
    for (std::int64_t token = 0; token < count; ++token) {
      const auto v = load(d, value + token * rows.stride);
      const float* weight = weights + token * kQuad;
      o0 = hn::MulAdd(hn::Set(d, weight[0]), v, o0);
      o1 = hn::MulAdd(hn::Set(d, weight[1]), v, o1);
      o2 = hn::MulAdd(hn::Set(d, weight[2]), v, o2);
      o3 = hn::MulAdd(hn::Set(d, weight[3]), v, o3);
    }
    hn::StoreU(o0, d, out);
    hn::StoreU(o1, d, out + rows.head_dim);
    hn::StoreU(o2, d, out + 2 * rows.head_dim);
    hn::StoreU(o3, d, out + 3 * rows.head_dim);
  }
}

// The queries of one KV head in fours, the last four padded with zeros.
struct Workspace {
  std::vector<float> queries;  // [num_kv_heads, quads, kQuad, head_dim]
  std::vector<float> outputs;  // likewise
  std::vector<Quad> quads;     // [num_kv_heads, quads]
};

inline Workspace prepare(const DecodeAttentionParams& params) {
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  const std::int64_t quads_per_kv = (heads_per_kv + kQuad - 1) / kQuad;
  const std::int64_t quads = params.num_kv_heads * quads_per_kv, head_dim = params.head_dim;
  Workspace work;
  work.queries.assign(static_cast<std::size_t>(quads * kQuad * head_dim), 0.0f);
  work.outputs.assign(work.queries.size(), 0.0f);
  work.quads.resize(static_cast<std::size_t>(quads));
  for (std::int64_t quad = 0; quad < quads; ++quad) {
    Quad& target = work.quads[static_cast<std::size_t>(quad)];
    target.output = work.outputs.data() + quad * kQuad * head_dim;
    for (std::int64_t lane = 0; lane < kQuad; ++lane) {
      float* query = work.queries.data() + (quad * kQuad + lane) * head_dim;
      const std::int64_t index = quad % quads_per_kv * kQuad + lane;  // among the KV head's heads
      const std::int64_t head = quad / quads_per_kv * heads_per_kv + index;
      for (std::int64_t i = 0; index < heads_per_kv && i < head_dim; ++i) {
        query[i] = params.query[head * head_dim + i] * params.scale;
      }
      target.query[lane] = query;
      target.max[lane] = -INFINITY;
      target.sum[lane] = 0;
    }
  }
  return work;
}

inline void collect(const DecodeAttentionParams& params, const Workspace& work,
                    const AttentionPartial& partial) {
  const std::int64_t heads_per_kv = params.num_heads / params.num_kv_heads;
  const std::int64_t quads_per_kv = (heads_per_kv + kQuad - 1) / kQuad;
  for (std::int64_t head = 0; head < params.num_heads; ++head) {
    const std::int64_t index = head % heads_per_kv, lane = index % kQuad;
    const Quad& quad =
        work.quads[static_cast<std::size_t>(head / heads_per_kv * quads_per_kv + index / kQuad)];
    partial.max[head] = quad.max[lane];
    partial.sum[head] = quad.sum[lane];
    std::memcpy(partial.output + head * params.head_dim, quad.output + lane * params.head_dim,
                static_cast<std::size_t>(params.head_dim) * sizeof(float));
  }
}

// Rows first .. last - 1 of one block of rows each of keys and values.
template <class D, class T>
void attend_rows(D d, const DecodeAttentionParams& params, const T* key, const T* value,
                 std::int64_t count, Workspace& work) {
  const std::int64_t quads_per_kv =
      static_cast<std::int64_t>(work.quads.size()) / params.num_kv_heads;
  HWY_ALIGN float scores[kBlockTokens * kQuad];
  for (std::int64_t quad = 0; quad < static_cast<std::int64_t>(work.quads.size()); ++quad) {
    const std::int64_t offset = quad / quads_per_kv * params.head_dim;
    const HeadRows<T> rows{key + offset, value + offset, params.num_kv_heads * params.head_dim,
                           params.head_dim};
    Quad& state = work.quads[static_cast<std::size_t>(quad)];
    score_block(d, rows, state, 0, count, scores);
    if (params.softcap != 0) {
      cap(params.softcap, count, scores);
    }
    exponentiate(state, params.head_dim, count, scores);
    accumulate_block(d, rows, state, 0, count, scores);
  }
}

template <class D, class T>
void attend_typed(D d, const DecodeAttentionParams& params, const KvSegment& segment,
                  std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  Workspace work = prepare(params);
  const std::int64_t width = params.num_kv_heads * params.head_dim;
  const auto at = [width](const KvRows& rows, std::int64_t row) {
    return static_cast<const T*>(rows.blocks[row / rows.block_rows]) +
           row % rows.block_rows * width;
  };
  for (std::int64_t row = first; row < last;) {
    const std::int64_t count =
        std::min({kBlockTokens, last - row, segment.key.block_rows - row % segment.key.block_rows,
                  segment.value.block_rows - row % segment.value.block_rows});
    attend_rows(d, params, at(segment.key, row), at(segment.value, row), count, work);
    row += count;
  }
  collect(params, work, partial);
}

template <class T>
void attend_element(const DecodeAttentionParams& params, const KvSegment& segment,
                    std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  const hn::ScalableTag<float> widest;
  const hn::CappedTag<float, 8> eight;
  const hn::CappedTag<float, 4> four;
  if (params.head_dim % static_cast<std::int64_t>(hn::Lanes(widest)) == 0) {
    attend_typed<decltype(widest), T>(widest, params, segment, first, last, partial);
  } else if (params.head_dim % static_cast<std::int64_t>(hn::Lanes(eight)) == 0) {
    attend_typed<decltype(eight), T>(eight, params, segment, first, last, partial);
  } else {
    attend_typed<decltype(four), T>(four, params, segment, first, last, partial);
  }
}

void attend(const DecodeAttentionParams& params, const KvSegment& segment, std::int64_t first,
            std::int64_t last, const AttentionPartial& partial) {
  switch (segment.key.element) {
    case KvElement::kFloat32:
      return attend_element<float>(params, segment, first, last, partial);
    case KvElement::kBFloat16:
      return attend_element<hwy::bfloat16_t>(params, segment, first, last, partial);
    case KvElement::kFloat16:
      return attend_element<hwy::float16_t>(params, segment, first, last, partial);
    default:
      return decode_attention_partial_reference(params, segment, first, last, partial);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(attend);

void decode_attention_partial(const DecodeAttentionParams& params, const KvSegment& segment,
                              std::int64_t first, std::int64_t last,
                              const AttentionPartial& partial) {
  if (params.head_dim % 4 != 0 || segment.raw_key || segment.key.element != segment.value.element) {
    return decode_attention_partial_reference(params, segment, first, last, partial);
  }
  HWY_DYNAMIC_DISPATCH(attend)(params, segment, first, last, partial);
}

void combine_partials(const AttentionPartial* partials, std::int64_t count, std::int64_t num_heads,
                      std::int64_t head_dim, float* output) {
  for (std::int64_t head = 0; head < num_heads; ++head) {
    float largest = -INFINITY, sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      largest = std::max(largest, partials[i].max[head]);
    }
    float* row = output + head * head_dim;
    std::fill(row, row + head_dim, 0.0f);
    for (std::int64_t i = 0; i < count; ++i) {
      const float weight = std::exp(partials[i].max[head] - largest);
      sum += weight * partials[i].sum[head];
      for (std::int64_t channel = 0; channel < head_dim; ++channel) {
        row[channel] += weight * partials[i].output[head * head_dim + channel];
      }
    }
    for (std::int64_t channel = 0; channel < head_dim; ++channel) {
      row[channel] /= sum;
    }
  }
}

}  // namespace kvc
#endif  // HWY_ONCE
