// Tensors of an engine in GPU memory, through torch's stable ABI, as device_codes.h reads them.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>

#include "runtime/ops/device_codes.h"
#include "runtime/ops/tensor_checks.h"

namespace kvc {

// check_numbers() on any device.
template <class T>
T* device_numbers(const Tensor& tensor, ScalarType type, std::int64_t rank, const char* name) {
  check_numbers(tensor, type, rank, name);
  return static_cast<T*>(tensor.data_ptr());
}

// An error where one of the tensors lies on another device than `like`: kernels would follow its address.
template <class Tensors>
void check_device(const Tensors& tensors, const Tensor& like, const char* name) {
  for (const Tensor& tensor : tensors) {
    STD_TORCH_CHECK(tensor.numel() == 0 ||
                        (tensor.is_cuda() == like.is_cuda() && tensor.is_cpu() == like.is_cpu() &&
                         tensor.get_device_index() == like.get_device_index()),
                    "kvconvert: ", name,
                    ": tensors on several devices, expected all on that of the pages");
  }
}
inline void check_device(std::initializer_list<std::reference_wrapper<const Tensor>> tensors,
                         const Tensor& like, const char* name) {
  check_device<std::initializer_list<std::reference_wrapper<const Tensor>>>(tensors, like, name);
}

inline DeviceElement device_element(const Tensor& rows, const char* name) {
  const ScalarType type = rows.scalar_type();
  STD_TORCH_CHECK(type == ScalarType::BFloat16 || type == ScalarType::Half, "kvconvert: ", name,
                  ": expected bfloat16 or float16; GPUs serve no float32 from codes");
  return type == ScalarType::BFloat16 ? DeviceElement::kBFloat16 : DeviceElement::kFloat16;
}

inline int narrow(std::int64_t number, const char* name) {
  STD_TORCH_CHECK(number >= 0 && number <= std::numeric_limits<std::int32_t>::max(),
                  "kvconvert: ", name, ": ", number, ", expected less than 2^31");
  return static_cast<int>(number);
}

// rows: of the element; any of the op's.
inline DeviceCodes::Memory memory_of(const DeviceCodes& codes, const Tensor& image,
                                     const Tensor& cos, const Tensor& sin, const Tensor& pages,
                                     const Tensor& rows) {
  const PagedCodes::Shape& shape = codes.shape();
  DeviceCodes::Memory memory{
      .image = device_numbers<std::uint8_t>(image, ScalarType::Byte, 1, "image"),
      .cos = device_numbers<float>(cos, ScalarType::Float, 2, "cos"),
      .sin = device_numbers<float>(sin, ScalarType::Float, 2, "sin"),
      .element = device_element(rows, "rows")};
  STD_TORCH_CHECK(
      image.size(0) == static_cast<std::int64_t>(codes.image().factors.bytes().size()) &&
          cos.size(1) == shape.rope.num_pairs && sin.size(1) == cos.size(1) &&
          cos.size(0) >= shape.num_positions && sin.size(0) >= shape.num_positions,
      "kvconvert: image and angles: expected those of the codes");
  const std::int64_t bytes = std::max<std::int64_t>(1, codes.image().tile_bytes);
  STD_TORCH_CHECK(pages.scalar_type() == ScalarType::Byte && pages.dim() == 2 &&
                      pages.stride(1) == 1 && pages.stride(0) % 4 == 0 && pages.size(1) >= bytes,
                  "kvconvert: pages: expected uint8 [pages, ", bytes,
                  " bytes or more] with a multiple of 4 bytes from one to the next");
  memory.pages = {
      static_cast<std::uint8_t*>(pages.data_ptr()), pages.stride(0), narrow(pages.size(0), "pages"),
      codes.image().tile_bytes == 0 ? 1 : narrow(pages.size(1) / bytes, "tiles of a page")};
  return memory;
}

inline EngineRows engine_rows(const Tensor& rows, std::int64_t count, const DeviceCodes& codes,
                              DeviceElement element, const char* name) {
  const PagedCodes::Shape& shape = codes.shape();
  STD_TORCH_CHECK(rows.dim() == 3 && rows.size(0) == count && rows.size(1) == shape.num_kv_heads &&
                      rows.size(2) == shape.head_dim && rows.stride(2) == 1 &&
                      device_element(rows, name) == element,
                  "kvconvert: ", name, ": expected [", count, ", ", shape.num_kv_heads, ", ",
                  shape.head_dim, "] of one type with neighbouring channels");
  return {rows.data_ptr(), rows.stride(0), rows.stride(1)};
}

inline DeviceCodes::Sequences sequences_of(const DeviceCodes& codes,
                                           const DeviceCodes::Memory& memory, const Tensor& query,
                                           const Tensor& block_table, const Tensor& tokens,
                                           std::int64_t max_tokens) {
  STD_TORCH_CHECK(block_table.dim() == 2 && block_table.stride(1) == 1 &&
                      block_table.scalar_type() == ScalarType::Int,
                  "kvconvert: attend: expected an int32 block table [sequences, pages]");
  const std::int64_t in_table =
      block_table.size(1) * memory.pages.page_tiles * static_cast<std::int64_t>(kTileTokens);
  DeviceCodes::Sequences sequences{
      .pages = static_cast<const std::int32_t*>(block_table.data_ptr()),
      .stride = block_table.stride(0),
      .count = narrow(query.size(0), "queries"),
      .tokens = device_numbers<std::int32_t>(tokens, ScalarType::Int, 1, "sequence lengths"),
      .most_tokens =
          narrow(std::min({max_tokens, in_table, codes.shape().num_positions}), "tokens")};
  STD_TORCH_CHECK(tokens.size(0) == sequences.count && block_table.size(0) >= sequences.count &&
                      sequences.most_tokens > 0,
                  "kvconvert: attend: ", sequences.count, " queries, ", tokens.size(0),
                  " lengths and ", block_table.size(0), " rows of pages, at most ", max_tokens,
                  " tokens");
  return sequences;
}

inline void set_open_tiles(const Tensor& keys, const Tensor& values, const Tensor& tiles,
                           const DeviceCodes& codes, DeviceElement element,
                           DeviceCodes::Sequences& sequences) {
  const PagedCodes::Shape& shape = codes.shape();
  for (const Tensor* rows : {&keys, &values}) {
    STD_TORCH_CHECK(
        rows->dim() == 4 && rows->is_contiguous() && rows->size(1) == kTileTokens &&
            rows->size(2) == shape.num_kv_heads && rows->size(3) == shape.head_dim &&
            rows->size(0) == keys.size(0) && device_element(*rows, "open tiles") == element,
        "kvconvert: open tiles: expected contiguous keys and values [tiles, ", kTileTokens, ", ",
        shape.num_kv_heads, ", ", shape.head_dim, "] of the query's type");
  }
  STD_TORCH_CHECK(tiles.size(0) == sequences.count, "kvconvert: open tiles: of ", tiles.size(0),
                  " sequences, expected ", sequences.count);
  sequences.open_keys = keys.data_ptr();
  sequences.open_values = values.data_ptr();
  sequences.open_numbers = device_numbers<std::int32_t>(tiles, ScalarType::Int, 2, "open tiles");
  sequences.exact_tiles = narrow(tiles.size(1), "open tiles");
  sequences.num_open_tiles = narrow(keys.size(0), "open tiles");
}

}  // namespace kvc
