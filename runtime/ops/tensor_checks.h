// Tensors of an engine, through torch's stable ABI, as the caches of codes read them.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#include "runtime/ops/paged_codes.h"

namespace kvc {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Contiguous, of this type and rank.
template <class T>
const T* numbers(const Tensor& tensor, ScalarType type, std::int64_t rank, const char* name) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == type && tensor.dim() == rank &&
                      tensor.is_contiguous(),
                  "kvconvert: ", name, ": expected a contiguous tensor of ", rank,
                  " dimensions on the CPU, of another type than it has or else");
  return static_cast<const T*>(tensor.data_ptr());
}

inline const float* floats(const Tensor& tensor, std::int64_t rank, const char* name) {
  return numbers<float>(tensor, ScalarType::Float, rank, name);
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

// tiles: int32 [count], or of no elements: none.
inline PagedCodes::OpenTiles open_tiles(const Tensor& keys, const Tensor& values,
                                        const Tensor& tiles, std::int64_t count,
                                        const PagedCodes::Shape& shape) {
  if (tiles.numel() == 0) {
    return {};
  }
  const auto* number = numbers<std::int32_t>(tiles, ScalarType::Int, 1, "open tiles");
  for (const Tensor* rows : {&keys, &values}) {
    STD_TORCH_CHECK(rows->is_cpu() && rows->dim() == 4 && rows->is_contiguous() &&
                        rows->size(1) == kTileTokens && rows->size(2) == shape.num_kv_heads &&
                        rows->size(3) == shape.head_dim && rows->size(0) == keys.size(0) &&
                        rows->scalar_type() == keys.scalar_type(),
                    "kvconvert: open tiles: expected contiguous keys and values [tiles, ",
                    kTileTokens, ", ", shape.num_kv_heads, ", ", shape.head_dim, "] on the CPU");
  }
  STD_TORCH_CHECK(tiles.size(0) == count, "kvconvert: open tiles: ", tiles.size(0), ", expected ",
                  count);
  for (std::int64_t i = 0; i < count; ++i) {
    STD_TORCH_CHECK(number[i] >= 0 && number[i] < keys.size(0), "kvconvert: open tile ", number[i],
                    ", expected 0 to ", keys.size(0) - 1);
  }
  return {keys.data_ptr(), values.data_ptr(), element_of(keys, "open tiles"), number};
}

}  // namespace kvc
