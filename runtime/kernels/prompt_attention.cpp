#include "runtime/kernels/prompt_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/prompt_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/kernels/prompt_operands-inl.h"
#include "runtime/kernels/prompt_pieces.h"
#include "runtime/kernels/prompt_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend_prompt_pieces(const PromptAttention& params, std::int64_t first, std::int64_t last) {
  prompt_attention_reference(params, first, last);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

// The queries of one piece, for all query heads of its KV head.
template <class Operands>
class PieceAttention {
 public:
  explicit PieceAttention(const PromptAttention& params)
      : params_(params),
        per_kv_(params.num_heads / params.num_kv_heads),
        width_((params.head_dim + kColumnsTogether - 1) / kColumnsTogether * kColumnsTogether),
        operands_(per_kv_ * kPromptBlock, params.head_dim, width_),
        scores_(size(kQueriesTogether * kPromptBlock)),
        outputs_(size(per_kv_ * kPromptBlock * width_)),
        softmaxes_(size(per_kv_ * kPromptBlock)) {}

  void run(const QueryPiece& piece) {
    piece_ = piece;
    begin();
    const std::int64_t exact_begin = params_.exact_start(piece.first);
    const std::int64_t end = params_.exact_start(piece.last - 1);  // of codes
    const std::int64_t seen = params_.seen_from(piece.first);
    for (std::int64_t key = seen / kPromptBlock * kPromptBlock; std::max(key, seen) < end;
         key += kPromptBlock) {
      const std::int64_t last = std::min(key + kPromptBlock, end);
      // Queries whose exact tokens begin earlier do not read this block.
      std::int64_t first = piece.first;
      while (params_.exact_start(first) <= std::max(key, seen)) {
        first = params_.tile_end(first);
      }
      add(params_.coded_key, params_.coded_value, key, last, first, piece.last, true);
    }
    if (params_.exact_step) {
      const std::int64_t begin = std::max(exact_begin, seen) / kPromptBlock * kPromptBlock;
      for (std::int64_t key = begin; key < piece.last; key += kPromptBlock) {
        const std::int64_t last = std::min(key + kPromptBlock, piece.last);
        add(params_.exact_key, params_.exact_value, key, last, std::max(key, piece.first),
            piece.last, false);
      }
    } else {
      std::int64_t tile = exact_begin;
      while (params_.tile_end(tile) <= seen) {
        tile = params_.tile_end(tile);
      }
      while (tile < piece.last) {
        const std::int64_t next = params_.tile_end(tile);
        const std::int64_t stop =  // of its queries
            std::max(tile, params_.sinks) + params_.exact_tiles * kQuantisedRows;
        add(params_.exact_key, params_.exact_value, tile, std::min(next, piece.last),
            std::max(tile, piece.first), std::min(stop, piece.last), false);
        tile = next;
      }
    }
    finish();
  }

 private:
  using Words = typename Operands::Words;

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  std::int64_t row(std::int64_t head, std::int64_t token) const {
    return head * kPromptBlock + token - piece_.first;
  }

  void begin() {
    for (std::int64_t head = 0; head < per_kv_; ++head) {
      for (std::int64_t token = piece_.first; token < piece_.last; ++token) {
        operands_.set_query(row(head, token), params_.query, token, piece_.kv_head * per_kv_ + head,
                            params_.scale);
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
    operands_.set_keys({keys, piece_.kv_head, begin, present, end}, columns);
    operands_.set_values({values, piece_.kv_head, begin, present, end});
    for (std::int64_t head = 0; head < per_kv_; ++head) {
      for (std::int64_t token = first; token < last; token += kQueriesTogether) {
        const std::int64_t stop = std::min(token + kQueriesTogether, last);
        const Sums outputs{outputs_.data() + row(head, token) * width_, width_};
        const Sums scores{scores_.data(), kPromptBlock};
        multiply<Words, false>(stop - token, operands_.depth(), columns,
                               operands_.queries(row(head, token)), operands_.keys(), scores);
        for (std::int64_t i = token; i < stop; ++i) {
          soften(i, begin, end, coded, columns, softmaxes_[size(row(head, i))],
                 scores.numbers + (i - token) * kPromptBlock,
                 outputs.numbers + (i - token) * width_);
        }
        multiply<Words, true>(stop - token, Operands::value_depth(end - begin), width_,
                              operands_.weights(scores.numbers, stop - token, columns),
                              operands_.values(), outputs);
      }
    }
  }

  // A token's scores of add()'s tokens become weights, and its output so far fits them.
  void soften(std::int64_t token, std::int64_t begin, std::int64_t end, bool coded,
              std::int64_t columns, RowSoftmax& softmax, float* scores, float* output) {
    const std::int64_t exact = params_.exact_start(token);
    const std::int64_t seen = std::max({params_.seen_from(token), coded ? begin : exact, begin});
    const std::int64_t stop = std::min(end, coded ? exact : token + 1);
    if (seen >= stop) {
      std::fill_n(scores, columns, 0.0f);
      return;
    }
    float scale = Operands::kScalesQueries ? 1 : params_.scale;
    if (params_.softcap != 0) {
      cap_scores(scores, columns, scale, params_.softcap);
      scale = 1;
    }
    hide_others(scores, columns, seen - begin, stop - begin);
    const float factor = soften_row(scores, columns, scale, softmax);
    if (factor != 1) {
      multiply_row(output, width_, factor);
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
  Operands operands_;
  std::vector<float> scores_, outputs_;
  std::vector<RowSoftmax> softmaxes_;  // [heads, kPromptBlock]
};

template <class Operands>
void attend_pieces(const PromptAttention& params, std::int64_t first, std::int64_t last) {
  PieceAttention<Operands> attention(params);
  for (std::int64_t i = first; i < last; ++i) {
    attention.run(query_piece(params, i));
  }
}

void attend_prompt_pieces(const PromptAttention& params, std::int64_t first, std::int64_t last) {
#if KVC_HAS_BFLOAT16_DOT
  if (Bfloat16Operands::fit(params)) {
    return attend_pieces<Bfloat16Operands>(params, first, last);
  }
#endif
  attend_pieces<FloatOperands>(params, first, last);
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
