// How a prompt's attention is cut, and its rows as numbers: what the kernel and its reference share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"
#include "runtime/kernels/prompt_attention.h"

namespace kvc {

// Tokens of a block of queries or keys: from a multiple of it on, so that sums have the same order wherever a prompt is cut.
inline constexpr std::int64_t kPromptBlock = 4 * kQuantisedRows;

// The queries of one KV head and block.
struct QueryPiece {
  std::int64_t kv_head, first, last;  // tokens
};

inline QueryPiece query_piece(const PromptAttention& params, std::int64_t index) {
  const std::int64_t first_block = params.query.first / kPromptBlock;
  const std::int64_t count = (params.query.last - 1) / kPromptBlock + 1 - first_block;
  const std::int64_t i = index % count;
  // Short ones and long ones in turn.
  const std::int64_t block = first_block + (i % 2 == 0 ? i / 2 : count - 1 - i / 2);
  return {index / count, std::max(params.query.first, block * kPromptBlock),
          std::min(params.query.last, (block + 1) * kPromptBlock)};
}

// factor times channels 0 .. count - 1 of a row.
inline void load_numbers(const TokenRows& rows, std::int64_t token, std::int64_t head,
                         std::int64_t count, float factor, float* to) {
  const std::int64_t place = rows.place(token, head);
  const auto convert = [&](const auto* from, const auto& widen) {
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = factor * widen(from[place + i]);
    }
  };
  switch (rows.element) {
    case KvElement::kBFloat16:
      return convert(static_cast<const std::uint16_t*>(rows.data),
                     [](std::uint16_t x) { return widen_bfloat16(x); });
    case KvElement::kFloat16:
      return convert(static_cast<const std::uint16_t*>(rows.data),
                     [](std::uint16_t x) { return widen_float16(x); });
    default:
      return convert(static_cast<const float*>(rows.data), [](float x) { return x; });
  }
}

// factor * numbers to channels 0 .. count - 1 of a row.
inline void store_numbers(const TokenRows& rows, std::int64_t token, std::int64_t head,
                          std::int64_t count, float factor, const float* numbers) {
  const std::int64_t place = rows.place(token, head);
  const auto convert = [&](auto* to, const auto& narrow) {
    for (std::int64_t i = 0; i < count; ++i) {
      to[place + i] = narrow(factor * numbers[i]);
    }
  };
  switch (rows.element) {
    case KvElement::kBFloat16:
      return convert(static_cast<std::uint16_t*>(rows.data),
                     [](float x) { return narrow_bfloat16(x); });
    case KvElement::kFloat16:
      return convert(static_cast<std::uint16_t*>(rows.data),
                     [](float x) { return narrow_float16(x, Rounding::kNearest); });
    default:
      return convert(static_cast<float*>(rows.data), [](float x) { return x; });
  }
}

}  // namespace kvc
