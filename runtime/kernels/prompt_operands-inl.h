// A piece's queries, and a block's keys, values and weights, as the products of prompt_attention.cpp read them.
#if defined(KVC_RUNTIME_KERNELS_PROMPT_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_PROMPT_OPERANDS_INL_H_
#undef KVC_RUNTIME_KERNELS_PROMPT_OPERANDS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_PROMPT_OPERANDS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/kernels/bfloat16_product-inl.h"
#include "runtime/kernels/cpu_features.h"
#include "runtime/kernels/float_product-inl.h"
#include "runtime/kernels/prompt_pieces.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// Queries whose scores stay in the nearest cache from one product to the next.
constexpr std::int64_t kQueriesTogether = 4 * kRowsTogether;

// Tokens of one KV head: those before `present` are zero.
struct TokenBlock {
  const TokenRows& rows;
  std::int64_t kv_head, begin, present, end;  // at most kPromptBlock

  std::int64_t size() const { return end - begin; }
};

// Arrays of one thread. Words: of products, kNumbers of a row each.
template <class OfWords>
class PromptOperands {
 public:
  using Words = OfWords;
  using Word = typename Words::Word;

  PromptOperands(std::int64_t num_queries, std::int64_t head_dim, std::int64_t width)
      : depth_(head_dim / Words::kNumbers),
        width_(width),
        queries_(size(num_queries * depth_)),
        keys_(size(depth_ * kPromptBlock)),
        values_(size(kPromptBlock / Words::kNumbers * width)) {}

  std::int64_t depth() const { return depth_; }
  // Words of a sum over `tokens` values.
  static std::int64_t value_depth(std::int64_t tokens) {
    return (tokens + Words::kNumbers - 1) / Words::kNumbers;
  }
  Factors<Word> queries(std::int64_t row) const { return {queries_.data() + row * depth_, depth_}; }
  Factors<Word> keys() const { return {keys_.data(), kPromptBlock}; }  // [depth, tokens]
  Factors<Word> values() const { return {values_.data(), width_}; }    // [value_depth, width]

 protected:
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  std::int64_t depth_, width_;
  std::vector<Word> queries_, keys_, values_;
};

// Numbers in float32, whatever they are stored as. Queries are multiplied by the scale of scores.
class FloatOperands : public PromptOperands<FloatWords> {
 public:
  FloatOperands(std::int64_t num_queries, std::int64_t head_dim, std::int64_t width)
      : PromptOperands(num_queries, head_dim, width), rows_(size(kColumnsTogether * head_dim)) {}

  static constexpr bool kScalesQueries = true;

  void set_query(std::int64_t row, const TokenRows& rows, std::int64_t token, std::int64_t head,
                 float scale) {
    load_numbers(rows, token, head, depth_, scale, queries_.data() + row * depth_);
  }

  void set_keys(const TokenBlock& of, std::int64_t columns) {
    if (of.present > of.begin || of.size() < columns) {
      std::fill(keys_.begin(), keys_.end(), 0.0f);
    }
    // Some tokens' rows, then their columns: what is written lies close together.
    for (std::int64_t token = of.present; token < of.end; token += kColumnsTogether) {
      const std::int64_t count = std::min(kColumnsTogether, of.end - token);
      for (std::int64_t i = 0; i < count; ++i) {
        load_numbers(of.rows, token + i, of.kv_head, depth_, 1, rows_.data() + i * depth_);
      }
      for (std::int64_t channel = 0; channel < depth_; ++channel) {
        float* to = keys_.data() + channel * kPromptBlock + token - of.begin;
        for (std::int64_t i = 0; i < count; ++i) {
          to[i] = rows_[size(i * depth_ + channel)];
        }
      }
    }
  }

  // Channels beyond a head's stay zero.
  void set_values(const TokenBlock& of) {
    std::fill_n(values_.begin(), size((of.present - of.begin) * width_), 0.0f);
    for (std::int64_t token = of.present; token < of.end; ++token) {
      load_numbers(of.rows, token, of.kv_head, depth_, 1,
                   values_.data() + (token - of.begin) * width_);
    }
  }

  // Of `count` queries, at most kQueriesTogether; weights [count, kPromptBlock].
  Factors<float> weights(const float* weights, std::int64_t, std::int64_t) {
    return {weights, kPromptBlock};
  }

 private:
  std::vector<float> rows_;
};

#if KVC_HAS_BFLOAT16_DOT

// bfloat16 numbers as they are stored, so that scores are exact up to their sums; weights are rounded.
class Bfloat16Operands : public PromptOperands<Bfloat16Words> {
 public:
  Bfloat16Operands(std::int64_t num_queries, std::int64_t head_dim, std::int64_t width)
      : PromptOperands(num_queries, head_dim, width),
        none_(size(head_dim)),
        weights_(size(kQueriesTogether * kPromptBlock / 2)) {}

  static constexpr bool kScalesQueries = false;
  // True if all numbers are bfloat16, and this processor multiplies them.
  static bool fit(const PromptAttention& params) {
    const auto fits = [](const TokenRows& rows) {
      return rows.first == rows.last || rows.element == KvElement::kBFloat16;
    };
    return has_avx512_bf16() && params.scale > 0 && params.head_dim % 2 == 0 &&
           fits(params.query) && fits(params.coded_key) && fits(params.coded_value) &&
           fits(params.exact_key) && fits(params.exact_value);
  }

  void set_query(std::int64_t row, const TokenRows& rows, std::int64_t token, std::int64_t head,
                 float) {
    std::memcpy(queries_.data() + row * depth_, numbers(rows, token, head), size(4 * depth_));
  }

  void set_keys(const TokenBlock& of, std::int64_t columns) {
    if (of.present > of.begin || of.size() < columns) {
      std::fill(keys_.begin(), keys_.end(), 0u);
    }
    for (std::int64_t token = of.present; token < of.end; ++token) {
      const std::uint16_t* row = numbers(of.rows, token, of.kv_head);
      std::uint32_t* to = keys_.data() + token - of.begin;
      for (std::int64_t word = 0; word < depth_; ++word) {
        std::memcpy(to + word * kPromptBlock, row + 2 * word, sizeof(*to));
      }
    }
  }

  void set_values(const TokenBlock& of) {
    const auto row = [&](std::int64_t token) {
      return token < of.present || token >= of.end ? none_.data()
                                                   : numbers(of.rows, token, of.kv_head);
    };
    for (std::int64_t token = of.begin; token < of.end; token += 2) {
      const std::uint16_t *even = row(token), *odd = row(token + 1);
      std::uint32_t* to = values_.data() + (token - of.begin) / 2 * width_;
      for (std::int64_t channel = 0; channel < 2 * depth_; ++channel) {
        to[channel] = even[channel] | static_cast<std::uint32_t>(odd[channel]) << 16;
      }
    }
  }

  Factors<std::uint32_t> weights(const float* weights, std::int64_t count, std::int64_t columns) {
    for (std::int64_t i = 0; i < count; ++i) {
      round_numbers(weights + i * kPromptBlock, columns, weights_.data() + i * kPromptBlock / 2);
    }
    return {weights_.data(), kPromptBlock / 2};
  }

 private:
  static const std::uint16_t* numbers(const TokenRows& rows, std::int64_t token,
                                      std::int64_t head) {
    return static_cast<const std::uint16_t*>(rows.data) + rows.place(token, head);
  }

  std::vector<std::uint16_t> none_;
  std::vector<std::uint32_t> weights_;
};

#endif  // KVC_HAS_BFLOAT16_DOT
#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVC_RUNTIME_KERNELS_PROMPT_OPERANDS_INL_H_
