// Tensors of an engine, through torch's stable ABI, as the caches of codes read them.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>

#include "runtime/kernels/prompt_attention.h"
#include "runtime/ops/paged_codes.h"

namespace kvc {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// kvc::Parallel on torch's threads.
inline void run_parallel(std::int64_t count, std::int64_t least,
                         const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= least) {
    if (count > 0) {
      body(0, count);
    }
    return;
  }
  torch::stable::parallel_for(0, count, least, body);
}

inline const char* type_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    default:
      return "another type";
  }
}

// An error where a tensor has another type or rank, or its numbers do not follow each other.
inline void check_numbers(const Tensor& tensor, ScalarType type, std::int64_t rank,
                          const char* name) {
  STD_TORCH_CHECK(tensor.scalar_type() == type && tensor.dim() == rank && tensor.is_contiguous(),
                  "kvconvert: ", name, ": expected a contiguous tensor of ", rank,
                  " dimensions and type ", type_name(type), ", found ",
                  tensor.is_contiguous() ? "a contiguous" : "a strided", " one of ", tensor.dim(),
                  " and ", type_name(tensor.scalar_type()));
}

// check_numbers() on the CPU.
template <class T>
const T* numbers(const Tensor& tensor, ScalarType type, std::int64_t rank, const char* name) {
  STD_TORCH_CHECK(tensor.is_cpu(), "kvconvert: ", name, ": expected a tensor on the CPU");
  check_numbers(tensor, type, rank, name);
  return static_cast<const T*>(tensor.data_ptr());
}

inline const float* floats(const Tensor& tensor, std::int64_t rank, const char* name) {
  return numbers<float>(tensor, ScalarType::Float, rank, name);
}

// cos, sin: float32 [positions, pairs] of at least a tile's positions. Kernels turn keys by multiples of the first angle, so every
// row of the table has to be that.
inline RopeAngles rope_angles(const Tensor& cos, const Tensor& sin, std::int64_t head_dim) {
  const RopeAngles rope{
      .cos = floats(cos, 2, "cos"), .sin = floats(sin, 2, "sin"), .num_pairs = cos.size(1)};
  const std::int64_t pairs = rope.num_pairs, last = cos.size(0) - 1;
  STD_TORCH_CHECK(sin.size(0) == cos.size(0) && sin.size(1) == pairs &&
                      cos.size(0) >= kTileTokens && 2 * pairs <= head_dim,
                  "kvconvert: open: angles of at least ", kTileTokens,
                  " positions are expected, cos and sin alike");
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const double factor = rope.cos[pair];
    const double first = std::atan2(rope.sin[pairs + pair], rope.cos[pairs + pair]);
    for (const std::int64_t position : {last / 3, last}) {
      const double angle = first * static_cast<double>(position);
      const double slack = 1e-3 + 1e-6 * static_cast<double>(position);
      STD_TORCH_CHECK(
          std::abs(rope.cos[position * pairs + pair] - factor * std::cos(angle)) < slack &&
              std::abs(rope.sin[position * pairs + pair] - factor * std::sin(angle)) < slack,
          "kvconvert: the angles of position ", position, " are not ", position,
          " times those of position 1: this kind of RoPE is not served from codes");
    }
  }
  return rope;
}

inline KvElement element_of(const Tensor& rows, const char* name) {
  const ScalarType type = rows.scalar_type();
  STD_TORCH_CHECK(
      type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half,
      "kvconvert: ", name, ": expected float32, bfloat16 or float16");
  return type == ScalarType::Float      ? KvElement::kFloat32
         : type == ScalarType::BFloat16 ? KvElement::kBFloat16
                                        : KvElement::kFloat16;
}

inline HeadRows head_rows(const Tensor& rows, std::int64_t count, std::int64_t heads,
                          std::int64_t head_dim, const char* name) {
  STD_TORCH_CHECK(rows.is_cpu() && rows.dim() == 3 && rows.size(0) == count &&
                      rows.size(1) == heads && rows.size(2) == head_dim && rows.stride(2) == 1,
                  "kvconvert: ", name, ": expected [", count, ", ", heads, ", ", head_dim,
                  "] on the CPU with neighbouring channels");
  return {rows.data_ptr(), element_of(rows, name), rows.stride(0), rows.stride(1)};
}

inline PageMemory page_memory(const Tensor& pages, const PagedCodes& codes) {
  STD_TORCH_CHECK(pages.is_cpu() && pages.scalar_type() == ScalarType::Byte && pages.dim() == 2 &&
                      pages.stride(1) == 1,
                  "kvconvert: pages: expected uint8 [pages, bytes] on the CPU");
  const std::int64_t bytes = codes.tile_bytes(), tiles = bytes == 0 ? 1 : pages.size(1) / bytes;
  STD_TORCH_CHECK(tiles >= 1, "kvconvert: pages: ", pages.size(1), " bytes, expected at least ",
                  bytes);
  return {static_cast<std::uint8_t*>(pages.data_ptr()), pages.stride(0), pages.size(0), tiles};
}

// block_table: int32 [sequences, pages], of at least `count` sequences. Returns its numbers; row i begins at i * stride(0).
inline const std::int32_t* page_numbers(const Tensor& block_table, std::int64_t count) {
  STD_TORCH_CHECK(
      block_table.is_cpu() && block_table.dim() == 2 && block_table.stride(1) == 1 &&
          block_table.scalar_type() == ScalarType::Int && block_table.size(0) >= count,
      "kvconvert: attend: expected an int32 block table [sequences, pages] of at least ", count,
      " sequences on the CPU");
  return static_cast<const std::int32_t*>(block_table.data_ptr());
}

// Checks that the pages of a sequence's first `tokens` tokens exist.
inline void check_pages(const std::int32_t* numbers, std::int64_t tokens, std::int64_t page_tokens,
                        std::int64_t num_pages) {
  for (std::int64_t page = 0; page * page_tokens < tokens; ++page) {
    STD_TORCH_CHECK(numbers[page] >= 0 && numbers[page] < num_pages, "kvconvert: attend: page ",
                    numbers[page], ", expected 0 to ", num_pages - 1);
  }
}

// One query token for each of `count` sequences, whose tokens lie in `num_pages` pages; at most `most` tokens.
inline PagedCodes::Sequences query_sequences(const Tensor& block_table, const Tensor& tokens,
                                             std::int64_t count, std::int64_t page_tokens,
                                             std::int64_t num_pages, std::int64_t most) {
  const PagedCodes::Sequences sequences{
      .pages = page_numbers(block_table, count),
      .stride = block_table.stride(0),
      .count = count,
      .tokens = numbers<std::int32_t>(tokens, ScalarType::Int, 1, "sequence lengths")};
  STD_TORCH_CHECK(tokens.size(0) == count, "kvconvert: attend: ", count, " queries and ",
                  tokens.size(0), " lengths");
  most = std::min(most, block_table.size(1) * page_tokens);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = sequences.tokens[i];
    STD_TORCH_CHECK(length >= 1 && length <= most, "kvconvert: attend: a sequence of ", length,
                    " tokens, expected 1 to ", most);
    check_pages(sequences.pages + i * sequences.stride, length, page_tokens, num_pages);
  }
  return sequences;
}

// Tokens first .. first + count - 1 of a layer, in pages for `most` of them.
inline void check_tokens(const PagedCodes::Shape& shape, std::int64_t layer, std::int64_t first,
                         std::int64_t count, std::int64_t most) {
  STD_TORCH_CHECK(first >= 0 && first % kTileTokens == 0 && first + count <= most &&
                      first + count <= shape.num_positions && layer >= 0 &&
                      layer < shape.num_layers,
                  "kvconvert: read: tokens ", first, " to ", first + count,
                  " are not all in the pages, or do not begin with a tile");
}

// tiles: int32 [count, tiles of each], or of no elements: none.
inline PagedCodes::OpenTiles open_tiles(const Tensor& keys, const Tensor& values,
                                        const Tensor& tiles, const std::int32_t* lengths,
                                        std::int64_t count, const PagedCodes::Shape& shape) {
  if (tiles.numel() == 0) {
    return {};
  }
  const auto* number = numbers<std::int32_t>(tiles, ScalarType::Int, 2, "open tiles");
  for (const Tensor* rows : {&keys, &values}) {
    STD_TORCH_CHECK(rows->is_cpu() && rows->dim() == 4 && rows->is_contiguous() &&
                        rows->size(1) == kTileTokens && rows->size(2) == shape.num_kv_heads &&
                        rows->size(3) == shape.head_dim && rows->size(0) == keys.size(0) &&
                        rows->scalar_type() == keys.scalar_type(),
                    "kvconvert: open tiles: expected contiguous keys and values [tiles, ",
                    kTileTokens, ", ", shape.num_kv_heads, ", ", shape.head_dim, "] on the CPU");
  }
  STD_TORCH_CHECK(tiles.size(0) == count, "kvconvert: open tiles: of ", tiles.size(0),
                  " sequences, expected ", count);
  const PagedCodes::OpenTiles open{keys.data_ptr(), values.data_ptr(),
                                   element_of(keys, "open tiles"), number, tiles.size(1)};
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t tile = 0; tile < open.count(lengths[i]); ++tile) {
      const std::int32_t of = open.numbers_of(i, lengths[i])[tile];
      STD_TORCH_CHECK(of >= 0 && of < keys.size(0), "kvconvert: open tile ", of, ", expected 0 to ",
                      keys.size(0) - 1);
    }
  }
  return open;
}

// coded, exact: keys and values. numbers: scale and softcap.
inline PromptAttention prompt_attention_of(const Tensor& output, const Tensor& query,
                                           std::int64_t length,
                                           const std::array<const Tensor*, 2>& coded,
                                           const std::array<const Tensor*, 2>& exact,
                                           const std::array<double, 2>& numbers,
                                           std::int64_t window, bool exact_step,
                                           std::int64_t exact_tiles) {
  const Tensor& keys = *exact[0];
  STD_TORCH_CHECK(query.dim() == 3 && keys.dim() == 3 && keys.size(1) > 0 &&
                      query.size(1) % keys.size(1) == 0 && query.size(2) == keys.size(2) &&
                      query.size(2) > 0 && window >= 0 && exact_tiles >= 1,
                  "kvconvert: attend_prompt: expected queries and keys [tokens, heads, head_dim] "
                  "with a multiple of the keys' heads, a window of at least 0, and at least one "
                  "exact tile");
  const std::int64_t heads = query.size(1), kv_heads = keys.size(1), head_dim = query.size(2);
  PromptAttention params{.num_heads = heads,
                         .num_kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .scale = static_cast<float>(numbers[0]),
                         .softcap = static_cast<float>(numbers[1]),
                         .window = window,
                         .exact_step = exact_step,
                         .exact_tiles = exact_tiles};
  const auto rows = [&](const Tensor& tensor, std::int64_t count, std::int64_t of_heads,
                        std::int64_t last, const char* name) {
    const HeadRows of = head_rows(tensor, count, of_heads, head_dim, name);
    return TokenRows{of.data, of.element, of.token_stride, of.head_stride, last - count, last};
  };
  const std::int64_t queries = query.size(0);
  STD_TORCH_CHECK(queries <= length && keys.size(0) <= length,
                  "kvconvert: attend_prompt: ", queries, " queries and ", keys.size(0),
                  " exact tokens of ", length);
  params.query = rows(query, queries, heads, length, "query");
  params.output = rows(output, queries, heads, length, "output");
  params.exact_key = rows(keys, keys.size(0), kv_heads, length, "exact keys");
  params.exact_value = rows(*exact[1], keys.size(0), kv_heads, length, "exact values");
  const std::int64_t end = queries == 0 ? 0 : params.exact_start(length - 1);
  const std::int64_t old = coded[0]->size(0);
  params.coded_key = rows(*coded[0], old, kv_heads, end, "coded keys");
  params.coded_value = rows(*coded[1], old, kv_heads, end, "coded values");
  if (queries > 0) {
    const std::int64_t first = params.query.first, seen = params.seen_from(first);
    STD_TORCH_CHECK(
        params.exact_key.first <= std::max(params.exact_start(first), seen) &&
            params.coded_key.first >= 0 && (params.coded_key.first <= seen || end <= seen),
        "kvconvert: attend_prompt: tokens that queries see are missing: exact ones from ",
        params.exact_key.first, ", coded ones from ", params.coded_key.first, " to ", end,
        ", queries from ", first);
  }
  return params;
}

}  // namespace kvc
