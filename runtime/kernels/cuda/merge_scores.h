// What is lost when tokens are merged: by which the best are chosen.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"
#include "runtime/kernels/cuda/product_tiles.h"

namespace kvc {

// Rule ls: score = -||y - B h||^2 / ||y||^2 of every token, 0 for y = 0; sums in float32. Products are made tile
// by tile and never stored; a second launch joins the parts of y's channels.
struct LostRows {
  ProductRows latents;      // h [num_tokens, rank] as it is stored, of `element`; one part
  ProductRows reconstruct;  // B [channels, rank], of `element`; one part
  ProductRows exact;        // y [num_tokens, channels], of `element`, in parts as B's rows are
  DeviceElement element = DeviceElement::kFloat16;  // or bfloat16
  float* part_lost = nullptr;    // [channels / 128 rounded up, num_tokens], scratch
  float* part_energy = nullptr;  // likewise
  float* scores = nullptr;       // [num_tokens]
};
LaunchError lost_rows_cuda(const LostRows& params, void* stream);

// Rules by weights: the cosine of each row of a and b, sums in float32; 0 where one is zero.
struct RowCosines {
  const void* a = nullptr;  // [num_rows, width], of `element`
  const void* b = nullptr;  // likewise
  int num_rows = 0, width = 0;
  DeviceElement element = DeviceElement::kFloat16;  // or bfloat16
  float* cosines = nullptr;                         // [num_rows]
};
LaunchError row_cosines_cuda(const RowCosines& params, void* stream);

}  // namespace kvc
