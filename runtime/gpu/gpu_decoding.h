// Decodes a GPU cache's codes to tensors of the device, for a further prompt's attention. Steps read the codes
// themselves, by kernels.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>

#include "runtime/compression/coding.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/kernels/code_tiles.h"

namespace kvc {

// Rows of int8 or int4 codes (runtime/kernels/kv_rows.h), multiples of 32. [count, width] float32
at::Tensor integer_rows(const GpuRows& codes, std::size_t sequence, std::int64_t first,
                        std::int64_t count);
// Tiles [n, bytes of one] uint8 as levels times gains: coefficients in units of their steps. [n * 32, num_coefficients]
// float32
at::Tensor tile_levels(const TileLayout& layout, const at::Tensor& tiles);

// Coded tokens `first` .. `first` + `count` - 1 of a plain or coded layer; whole tiles.
DecodedTokens decode_gpu_tokens(const GpuModel& model, const GpuCache& cache, int layer,
                                std::size_t sequence, std::int64_t first, std::int64_t count);

}  // namespace kvc
