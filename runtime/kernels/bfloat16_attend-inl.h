// Attention over bfloat16 keys and values in place, of one store or of a channelwise sum of several (AVX-512
// BF16).
#if defined(KVC_RUNTIME_KERNELS_BFLOAT16_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_BFLOAT16_ATTEND_INL_H_
#undef KVC_RUNTIME_KERNELS_BFLOAT16_ATTEND_INL_H_
#else
#define KVC_RUNTIME_KERNELS_BFLOAT16_ATTEND_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/bfloat16_quads-inl.h"
#include "runtime/kernels/cpu_features.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if KVC_HAS_BFLOAT16_DOT

// Sources of keys and values; those of a sum are multiplied by factors [num_kv_heads, channels]; null: ones.
struct Bfloat16Source {
  const KvSegment& segment;
  const float* key_factors = nullptr;
  const float* value_factors = nullptr;
};

// A tile's rows are read a few at a time for all heads, keys before values, so memory is read in the order of
// addresses. Rows kRowsAhead later, as if contiguous, are prefetched evenly meanwhile: processors drop prefetches
// that come in bursts.
class Bfloat16Attention {
 public:
  static bool reads(const DecodeAttentionParams& params, const KvSegment& segment) {
    return has_avx512_bf16() && !segment.raw_key && segment.key.element == KvElement::kBFloat16 &&
           segment.value.element == KvElement::kBFloat16 && params.head_dim % kRun == 0 &&
           params.value_channels() % kRun == 0;
  }

  Bfloat16Attention(const DecodeAttentionParams& params, const std::vector<Bfloat16Source>& sources)
      : params_(params), heads_(params), softmaxes_(params) {
    const std::int64_t lanes = heads_.count * kQuad;
    scores_.resize(static_cast<std::size_t>(lanes * kTileRows));
    pairs_.resize(static_cast<std::size_t>(lanes * kTileRows / 2));
    rescale_.resize(static_cast<std::size_t>(lanes + kQuad));
    for (const Bfloat16Source& source : sources) {
      sources_.emplace_back(params, source);
      pack(Bfloat16Queries(params, source.key_factors), sources_.back());
    }
  }

  void attend(std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
    set_tiles(first, last, 0);
    for (int now = 0; first < last; now = 1 - now) {
      const std::int64_t count = sources_.front().keys[now].count;
      set_tiles(first + count, last, 1 - now);
      score_tile(now, count);
      weigh_tile(first, count, partial.scores);
      for (Source& source : sources_) {
        accumulate_tile(source, now);
      }
      first += count;
    }
    softmaxes_.begin(partial, params_.value_channels());
    for (const Source& source : sources_) {
      source.outputs.add_to(partial.output, order_of_pairs(params_.value_channels()),
                            source.from.value_factors);
    }
  }

 private:
  static constexpr std::int64_t kRowsAhead = 32;

  struct Source {
    Source(const DecodeAttentionParams& params, const Bfloat16Source& source)
        : from(source), outputs(params, params.value_channels()) {}

    Bfloat16Source from;
    std::int64_t parts = 1;  // of the queries
    AlignedVector<std::uint16_t>
        queries;  // [quads, kQuad, parts, head_dim] as Bfloat16Quads packs them
    QuadOutputs outputs;
    TilePlaces keys[2], values[2];  // of this tile and the next one
  };

  // Calls body(Bfloat16Quads, first quad) for all quads, two of a KV head together where possible.
  template <class Body>
  void for_quads(const Body& body) const {
    for (std::int64_t quad = 0; quad < heads_.count;) {
      const bool is_last = (quad + 1) % heads_.per_kv_head == 0;
      is_last ? body(Bfloat16Quads<1>(), quad) : body(Bfloat16Quads<2>(), quad);
      quad += is_last ? 1 : 2;
    }
  }

  void pack(const Bfloat16Queries& queries, Source& source) const {
    source.parts = queries.are_exact() ? 1 : 2;
    source.queries.resize(
        static_cast<std::size_t>(heads_.count * kQuad * source.parts * params_.head_dim));
    for_quads([&](auto quads, std::int64_t quad) {
      decltype(quads)::pack(queries[quad], params_.head_dim, source.parts,
                            queries.rest(quad) - queries[quad],
                            source.queries.data() + quad * kQuad * source.parts * params_.head_dim);
    });
  }

  void set_tiles(std::int64_t first, std::int64_t last, int which) {
    const std::int64_t count = std::min(kTileRows, last - first);
    for (Source& source : sources_) {
      const KvSegment& segment = source.from.segment;
      source.keys[which].set(segment.key, 2 * params_.num_kv_heads * params_.head_dim, first,
                             count);
      source.values[which].set(segment.value, 2 * params_.num_kv_heads * params_.value_channels(),
                               first, count);
    }
  }

  void score_tile(int now, std::int64_t count) {
    // As many rows as take about 2 KiB of a KV head.
    const std::int64_t together =
        std::clamp(1024 / params_.head_dim / kRowsAtOnce * kRowsAtOnce, kRowsAtOnce, kRowsAhead);
    for (std::int64_t line = 0; line < count; line += together) {
      for_quads([&](auto quads, std::int64_t quad) {
        const std::int64_t last = std::min(count, line + together);
        for (std::int64_t row = line; row < last; row += kRowsAtOnce) {
          score_rows<decltype(quads)>(quad, now, line, row, together);
        }
      });
    }
  }

  // For rows from `row` on, of `together` ones from `line` on.
  template <class Quads>
  HWY_INLINE void score_rows(std::int64_t quad, int now, std::int64_t line, std::int64_t row,
                             std::int64_t together) {
    const std::int64_t head = heads_.kv_head(quad), bytes = 2 * params_.head_dim;
    __m512 sums[kRowsAtOnce];
    std::fill(std::begin(sums), std::end(sums), _mm512_setzero_ps());
    for (const Source& source : sources_) {
      const TilePlaces& keys = source.keys[now];
      const bool is_key = line + kRowsAhead < keys.count;
      const TilePlaces& later = is_key ? keys : source.values[now];
      const std::uint8_t* ahead = later.rows[is_key ? line + kRowsAhead : line % kRowsAhead] +
                                  (together * head + row - line) * bytes;
      const std::uint16_t* query =
          source.queries.data() + quad * kQuad * source.parts * params_.head_dim;
      source.parts == 1
          ? Quads::template add_scores<1>({keys, head * bytes, bytes}, query, row, ahead, sums)
          : Quads::template add_scores<2>({keys, head * bytes, bytes}, query, row, ahead, sums);
    }
    Quads::store_scores(sums, params_.scale, scores_of(quad) + row * Quads::kLanes);
  }

  void weigh_tile(std::int64_t first, std::int64_t count, const QuadScores& kept) {
    for_quads([&](auto quads, std::int64_t quad) {
      using Quads = decltype(quads);
      float* scores = scores_of(quad);
      if (params_.softcap != 0) {
        cap_scores(params_.softcap, count * Quads::kLanes / kQuad, scores);
      }
      add_bias<Quads>(first, count, heads_.kv_head(quad), scores);
      if (kept.numbers != nullptr) {
        keep_scores<Quads>(count, scores, kept.numbers + quad * kept.stride + first * kQuad,
                           kept.stride);
      }
      const std::int64_t rows = in_fours(count);
      std::fill(scores + count * Quads::kLanes, scores + rows * Quads::kLanes, -INFINITY);
      Quads::weigh(rows, scores, &softmaxes_[quad], pairs_of(quad), rescale_.data() + quad * kQuad);
    });
  }

  void accumulate_tile(Source& source, int now) {
    const TilePlaces& values = source.values[now];
    const std::int64_t rows = in_fours(values.count), bytes = 2 * params_.value_channels();
    for (std::int64_t line = 0; line < rows; line += kRowsAhead) {
      const std::int64_t last = std::min(rows, line + kRowsAhead);
      const bool is_value = last < rows || source.keys[1 - now].count == 0;
      const TilePlaces& later = is_value ? values : source.keys[1 - now];
      for_quads([&](auto quads, std::int64_t quad) {
        using Quads = decltype(quads);
        const std::int64_t head = heads_.kv_head(quad);
        Quads::accumulate({values, head * bytes, bytes}, line, last,
                          pairs_of(quad) + line / 2 * Quads::kLanes,
                          line == 0 ? rescale_.data() + quad * kQuad : nullptr,
                          later.rows[is_value ? last % kTileRows : 0] + kRowsAhead * head * bytes,
                          source.outputs[quad]);
      });
    }
  }

  template <class Quads>
  void add_bias(std::int64_t first, std::int64_t count, std::int64_t kv_head, float* scores) const {
    const float* bias = sources_.front().from.segment.bias;
    for (std::int64_t row = 0; bias != nullptr && row < count; ++row) {
      for (std::int64_t lane = 0; lane < Quads::kLanes; ++lane) {
        scores[row * Quads::kLanes + lane] += bias[(first + row) * params_.num_kv_heads + kv_head];
      }
    }
  }

  template <class Quads>
  void keep_scores(std::int64_t count, const float* scores, float* to, std::int64_t stride) const {
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t i = 0; i < Quads::kLanes; i += kQuad) {
        _mm_storeu_ps(to + i / kQuad * stride + row * kQuad,
                      _mm_loadu_ps(scores + row * Quads::kLanes + i));
      }
    }
  }

  // Rows for whole vectors of scores; those from `count` on have no weight.
  static std::int64_t in_fours(std::int64_t count) { return (count + 3) / 4 * 4; }
  float* scores_of(std::int64_t quad) { return scores_.data() + quad * kQuad * kTileRows; }
  std::int32_t* pairs_of(std::int64_t quad) { return pairs_.data() + quad * kQuad * kTileRows / 2; }

  const DecodeAttentionParams& params_;
  QuadHeads heads_;
  std::vector<Source> sources_;
  QuadSoftmaxes softmaxes_;
  AlignedVector<float> scores_;  // [quads, kTileRows, kQuad], of two at once [kTileRows, 2, kQuad]
  AlignedVector<std::int32_t> pairs_;  // [quads, kTileRows / 2, kQuad], likewise
  AlignedVector<float> rescale_;       // [quads, kQuad], and a quad that is written with the last
};

#endif  // KVC_HAS_BFLOAT16_DOT
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
