#include "model/kernels/causal_attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/kernels/bfloat16_tiles.h"
#include "model/kernels/cpu_features.h"
#include "model/kernels/tile_softmax.h"

#if KVC_HAS_BFLOAT16_TILES
KVC_BEFORE_BFLOAT16_TILES();
namespace kvc {
namespace {

constexpr std::int64_t kTileKeys = 256;
constexpr std::int64_t kTileRows = 8 * kBlockRows;  // that a tile's scores are made for at a time
// A KV head's queries, a row of each head of each query, over one tile of keys after the other.
class CausalRows {
 public:
  CausalRows(const CausalAttentionParams& params, const CausalAttentionPart& part)
      : params_(params),
        part_(part),
        heads_(params.num_heads / params.num_kv_heads),
        num_rows_((part.last - part.first) * heads_),
        pairs_(params.head_dim / 2),
        width_(round_up_to(params.value_dim, kLanes)),
        query_(size(round_up_to(num_rows_, kBlockRows) * params.head_dim)),
        keys_(size(packed_size(pairs_, kTileKeys))),
        values_(size(packed_size(kTileKeys / 2, width_))),
        scores_(size(kTileRows * kTileKeys)),
        weights_(size(kTileRows * kTileKeys)),
        factors_(size(kTileRows), 1),
        softmaxes_(size(num_rows_)),
        sums_(size(round_up_to(num_rows_, kBlockRows) * width_)) {
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      std::memcpy(query_.data() + row * params.head_dim,
                  params.query + (part.first + row / heads_) * params.query_stride +
                      (part.kv_head * heads_ + row % heads_) * params.head_dim,
                  size(params.head_dim) * sizeof(std::uint16_t));
    }
  }

  void attend() {
    const std::int64_t end = seen_by(num_rows_ - 1).last;
    for (std::int64_t tile = seen_by(0).first / kTileKeys * kTileKeys; tile < end;
         tile += kTileKeys) {
      read(tile, std::min(kTileKeys, end - tile));
      for (std::int64_t row = 0; row < num_rows_; row += kTileRows) {
        add(tile, row, std::min(kTileRows, num_rows_ - row));
      }
    }
  }

  void write(std::uint16_t* output) const {
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      const float factor = 1 / softmaxes_[size(row)].sum;
      std::uint16_t* to = output + ((part_.first + row / heads_) * params_.num_heads +
                                    part_.kv_head * heads_ + row % heads_) *
                                       params_.value_dim;
      for (std::int64_t c = 0; c < params_.value_dim; c += kLanes) {
        const std::int64_t count = std::min(kLanes, params_.value_dim - c);
        const __m512 sum = _mm512_loadu_ps(sums_.data() + row * width_ + c);
        _mm256_mask_storeu_epi16(to + c, static_cast<__mmask16>((std::uint32_t{1} << count) - 1),
                                 reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(
                                     _mm512_mul_ps(sum, _mm512_set1_ps(factor)))));
      }
    }
  }

 private:
  static std::size_t size(std::int64_t x) { return static_cast<std::size_t>(x); }

  // Tokens that a row's query sees.
  KeyRange seen_by(std::int64_t row) const {
    const std::int64_t position =
        params_.num_keys - params_.num_queries + part_.first + row / heads_;
    return {params_.window == 0 ? 0 : std::max<std::int64_t>(0, position - params_.window + 1),
            position + 1};
  }

  void read(std::int64_t tile, std::int64_t count) {
    columns_ = round_up_to(count, 2 * kLanes);
    pack_columns(
        RowPairs{params_.key + tile * params_.key_stride + part_.kv_head * params_.head_dim,
                 params_.key_stride},
        count, pairs_, columns_, keys_.data());
    pack_pairs(params_.value + tile * params_.value_stride + part_.kv_head * params_.value_dim,
               params_.value_stride, count, columns_ / 2, params_.value_dim, values_.data());
  }

  // Rows first .. first + count - 1 over the tile that was read.
  void add(std::int64_t tile, std::int64_t first, std::int64_t count) {
    if (seen_by(first).first >= tile + columns_ || seen_by(first + count - 1).last <= tile) {
      return;
    }
    const std::int64_t rows = round_up_to(count, kBlockRows);
    multiply_tiles({.left = query_.data() + first * params_.head_dim,
                    .left_stride = params_.head_dim,
                    .rows = rows,
                    .pairs = pairs_,
                    .right = keys_.data(),
                    .right_pairs = pairs_,
                    .columns = columns_,
                    .factors = nullptr,
                    .sums = scores_.data(),
                    .sums_stride = kTileKeys});
    const ScoreRule rule{params_.scale, params_.softcap};
    for (std::int64_t row = 0; row < count; ++row) {
      const KeyRange seen = seen_by(first + row);
      factors_[size(row)] =
          exponentiate(rule,
                       {std::clamp<std::int64_t>(seen.first - tile, 0, columns_),
                        std::clamp<std::int64_t>(seen.last - tile, 0, columns_)},
                       columns_, scores_.data() + row * kTileKeys, softmaxes_[size(first + row)],
                       weights_.data() + row * kTileKeys);
    }
    multiply_tiles({.left = weights_.data(),
                    .left_stride = kTileKeys,
                    .rows = rows,
                    .pairs = columns_ / 2,
                    .right = values_.data(),
                    .right_pairs = columns_ / 2,
                    .columns = width_,
                    .factors = factors_.data(),
                    .sums = sums_.data() + first * width_,
                    .sums_stride = width_});
  }

  const CausalAttentionParams& params_;
  CausalAttentionPart part_;
  std::int64_t heads_, num_rows_, pairs_, width_, columns_ = 0;
  std::vector<std::uint16_t> query_;          // [num_rows, head_dim], rows padded to whole blocks
  std::vector<std::uint32_t> keys_, values_;  // of the tile, packed
  std::vector<float> scores_;                 // [kTileRows, kTileKeys]
  std::vector<std::uint16_t> weights_;        // [kTileRows, kTileKeys] bfloat16
  std::vector<float> factors_;                // [kTileRows]
  std::vector<RunningSoftmax> softmaxes_;     // [num_rows]
  std::vector<float> sums_;                   // [num_rows, width], rows padded to whole blocks
};

}  // namespace
}  // namespace kvc
HWY_POP_ATTRIBUTES

namespace kvc {

bool causal_attention_is_fast(std::int64_t head_dim) {
  return head_dim % 2 == 0 && has_bfloat16_products();
}

void causal_attention_task(const CausalAttentionParams& params, std::int64_t task,
                           std::uint16_t* output) {
  if (!causal_attention_is_fast(params.head_dim)) {
    return causal_attention_task_reference(params, task, output);
  }
  CausalRows rows(params, causal_attention_part(params, task));
  rows.attend();
  rows.write(output);
}

}  // namespace kvc

#else

namespace kvc {

bool causal_attention_is_fast(std::int64_t) { return false; }

void causal_attention_task(const CausalAttentionParams& params, std::int64_t task,
                           std::uint16_t* output) {
  causal_attention_task_reference(params, task, output);
}

}  // namespace kvc

#endif  // KVC_HAS_BFLOAT16_TILES
