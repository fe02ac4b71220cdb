#include "runtime/kernels/prompt_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/prompt_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/exp-inl.h"
#include "runtime/kernels/float_product-inl.h"
#include "runtime/kernels/prompt_pieces.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend_prompt_pieces(const PromptAttention& params, std::int64_t first, std::int64_t last) {
  prompt_attention_reference(params, first, last);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

// Queries whose scores stay in the nearest cache from one product to the next.
constexpr std::int64_t kQueriesTogether = 4 * kRowsTogether;

// A query's softmax so far.
struct RowSoftmax {
  float max = -INFINITY, sum = 0;
};

void cap_scores(float* scores, std::int64_t columns, float softcap) {
  const Numbers d;
  for (std::int64_t i = 0; i < columns; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::StoreU(cap_score(d, hn::LoadU(d, scores + i), softcap), d, scores + i);
  }
}

// Scores of lanes that are not first .. last - 1 become -infinity.
void hide_others(float* scores, std::int64_t columns, std::int64_t first, std::int64_t last) {
  std::fill(scores, scores + first, -INFINITY);
  std::fill(scores + last, scores + columns, -INFINITY);
}

// Scores become weights, zeros of -infinity; the sums so far shrink by the factor that is returned.
float soften_row(float* scores, std::int64_t columns, RowSoftmax& softmax) {
  const Numbers d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  NumberVec largest = hn::LoadU(d, scores);
  for (std::int64_t i = lanes; i < columns; i += lanes) {
    largest = hn::Max(largest, hn::LoadU(d, scores + i));
  }
  const float max = std::max(softmax.max, hn::GetLane(hn::MaxOfLanes(d, largest)));
  const float factor = softmax.max == max ? 1.0f : std::exp(softmax.max - max);
  const NumberVec shift = hn::Set(d, max);
  NumberVec sum = hn::Zero(d);
  for (std::int64_t i = 0; i < columns; i += lanes) {
    const NumberVec weight = exp_below_zero(d, hn::Sub(hn::LoadU(d, scores + i), shift));
    hn::StoreU(weight, d, scores + i);
    sum = hn::Add(sum, weight);
  }
  softmax = {max, softmax.sum * factor + hn::GetLane(hn::SumOfLanes(d, sum))};
  return factor;
}

void shrink(float* row, std::int64_t count, float factor) {
  const Numbers d;
  const NumberVec by = hn::Set(d, factor);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), by), d, row + i);
  }
}

// The queries of one piece, for all query heads of its KV head.
class PieceAttention {
 public:
  explicit PieceAttention(const PromptAttention& params)
      : params_(params),
        per_kv_(params.num_heads / params.num_kv_heads),
        width_((params.head_dim + kColumnsTogether - 1) / kColumnsTogether * kColumnsTogether),
        queries_(size(per_kv_ * kPromptBlock * params.head_dim)),
        keys_(size(params.head_dim * kPromptBlock)),
        values_(size(kPromptBlock * width_)),
        rows_(size(kColumnsTogether * params.head_dim)),
        scores_(size(kQueriesTogether * kPromptBlock)),
        outputs_(size(per_kv_ * kPromptBlock * width_)),
        softmaxes_(size(per_kv_ * kPromptBlock)) {}

  void run(const QueryPiece& piece) {
    piece_ = piece;
    begin();
    const std::int64_t own_begin = params_.own_start(piece.first);
    const std::int64_t end = params_.own_start(piece.last - 1);  // of codes
    const std::int64_t seen = params_.seen_from(piece.first);
    for (std::int64_t key = seen / kPromptBlock * kPromptBlock; key < end; key += kPromptBlock) {
      const std::int64_t last = std::min(key + kPromptBlock, end);
      // Queries whose exact tokens begin earlier do not read this block.
      std::int64_t first = piece.first;
      while (params_.own_start(first) <= std::max(key, seen)) {
        first = first / kQuantisedRows * kQuantisedRows + kQuantisedRows;
      }
      add(params_.coded_key, params_.coded_value, key, last, first, piece.last, true);
    }
    if (params_.exact_step) {
      const std::int64_t begin = std::max(own_begin, seen) / kPromptBlock * kPromptBlock;
      for (std::int64_t key = begin; key < piece.last; key += kPromptBlock) {
        const std::int64_t last = std::min(key + kPromptBlock, piece.last);
        add(params_.exact_key, params_.exact_value, key, last, std::max(key, piece.first),
            piece.last, false);
      }
    } else {
      for (std::int64_t tile = own_begin; tile < piece.last; tile += kQuantisedRows) {
        const std::int64_t last = std::min(tile + kQuantisedRows, piece.last);
        add(params_.exact_key, params_.exact_value, tile, last, std::max(tile, piece.first), last,
            false);
      }
    }
    finish();
  }

 private:
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  std::int64_t row(std::int64_t head, std::int64_t token) const {
    return head * kPromptBlock + token - piece_.first;
  }

  void begin() {
    for (std::int64_t head = 0; head < per_kv_; ++head) {
      for (std::int64_t token = piece_.first; token < piece_.last; ++token) {
        load_numbers(params_.query, token, piece_.kv_head * per_kv_ + head, params_.head_dim,
                     params_.scale, queries_.data() + row(head, token) * params_.head_dim);
      }
    }
    std::fill(outputs_.begin(), outputs_.end(), 0.0f);
    std::fill(softmaxes_.begin(), softmaxes_.end(), RowSoftmax{});
  }

  // Queries first .. last - 1 read tokens of `keys` and `values` from `begin` to `end`, at most kPromptBlock: those before
  // their exact ones of codes, or up to themselves.
  void add(const TokenRows& keys, const TokenRows& values, std::int64_t begin, std::int64_t end,
           std::int64_t first, std::int64_t last, bool coded) {
    if (first >= last) {
      return;
    }
    const std::int64_t columns =
        (end - begin + kColumnsTogether - 1) / kColumnsTogether * kColumnsTogether;
    const std::int64_t present = std::max(begin, keys.first);  // tokens before are not seen
    fill_keys(keys, begin, present, end, columns);
    fill_values(values, begin, present, end);
    for (std::int64_t head = 0; head < per_kv_; ++head) {
      for (std::int64_t token = first; token < last; token += kQueriesTogether) {
        const std::int64_t stop = std::min(token + kQueriesTogether, last);
        const Matrix outputs{outputs_.data() + row(head, token) * width_, width_};
        const Matrix scores{scores_.data(), kPromptBlock};
        multiply<false>(stop - token, params_.head_dim, columns,
                        {queries_.data() + row(head, token) * params_.head_dim, params_.head_dim},
                        {keys_.data(), kPromptBlock}, scores);
        for (std::int64_t i = token; i < stop; ++i) {
          soften(i, begin, end, coded, columns, softmaxes_[size(row(head, i))],
                 scores.numbers + (i - token) * kPromptBlock,
                 outputs.numbers + (i - token) * width_);
        }
        multiply<true>(stop - token, end - begin, width_, scores, {values_.data(), width_},
                       outputs);
      }
    }
  }

  // A token's scores of add()'s tokens become weights, and its output so far fits them.
  void soften(std::int64_t token, std::int64_t begin, std::int64_t end, bool coded,
              std::int64_t columns, RowSoftmax& softmax, float* scores, float* output) {
    const std::int64_t own = params_.own_start(token);
    const std::int64_t seen = std::max({params_.seen_from(token), coded ? begin : own, begin});
    const std::int64_t stop = std::min(end, coded ? own : token + 1);
    if (seen >= stop) {
      std::fill_n(scores, columns, 0.0f);
      return;
    }
    if (params_.softcap != 0) {
      cap_scores(scores, columns, params_.softcap);
    }
    hide_others(scores, columns, seen - begin, stop - begin);
    const float factor = soften_row(scores, columns, softmax);
    if (factor != 1) {
      shrink(output, width_, factor);
    }
  }

  // [head_dim, kPromptBlock]
  void fill_keys(const TokenRows& keys, std::int64_t begin, std::int64_t present, std::int64_t end,
                 std::int64_t columns) {
    if (present > begin || end - begin < columns) {
      std::fill(keys_.begin(), keys_.end(), 0.0f);
    }
    // Some tokens' rows, then their columns: what is written lies close together.
    for (std::int64_t token = present; token < end; token += kColumnsTogether) {
      const std::int64_t count = std::min(kColumnsTogether, end - token);
      for (std::int64_t i = 0; i < count; ++i) {
        load_numbers(keys, token + i, piece_.kv_head, params_.head_dim, 1,
                     rows_.data() + i * params_.head_dim);
      }
      for (std::int64_t channel = 0; channel < params_.head_dim; ++channel) {
        float* to = keys_.data() + channel * kPromptBlock + token - begin;
        for (std::int64_t i = 0; i < count; ++i) {
          to[i] = rows_[size(i * params_.head_dim + channel)];
        }
      }
    }
  }

  // [tokens, width_]; channels beyond head_dim stay zero
  void fill_values(const TokenRows& values, std::int64_t begin, std::int64_t present,
                   std::int64_t end) {
    std::fill_n(values_.begin(), size((present - begin) * width_), 0.0f);
    for (std::int64_t token = present; token < end; ++token) {
      load_numbers(values, token, piece_.kv_head, params_.head_dim, 1,
                   values_.data() + (token - begin) * width_);
    }
  }

  void finish() {
    for (std::int64_t head = 0; head < per_kv_; ++head) {
      for (std::int64_t token = piece_.first; token < piece_.last; ++token) {
        const std::int64_t i = row(head, token);
        store_numbers(params_.output, token, piece_.kv_head * per_kv_ + head, params_.head_dim,
                      1 / softmaxes_[size(i)].sum, outputs_.data() + i * width_);
      }
    }
  }

  const PromptAttention& params_;
  std::int64_t per_kv_, width_;
  QueryPiece piece_{};
  std::vector<float> queries_, keys_, values_, rows_, scores_, outputs_;
  std::vector<RowSoftmax> softmaxes_;  // [heads, kPromptBlock]
};

void attend_prompt_pieces(const PromptAttention& params, std::int64_t first, std::int64_t last) {
  PieceAttention attention(params);
  for (std::int64_t i = first; i < last; ++i) {
    attention.run(query_piece(params, i));
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(attend_prompt_pieces);

void prompt_attention(const PromptAttention& params, std::int64_t first, std::int64_t last) {
  HWY_DYNAMIC_DISPATCH(attend_prompt_pieces)(params, first, last);
}

}  // namespace kvc
#endif  // HWY_ONCE
