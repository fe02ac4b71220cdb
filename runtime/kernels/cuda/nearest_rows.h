// The nearest of many vectors for each of many others, exactly: how a prompt's tokens find those of an earlier
// one (SemShareKV).
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"
#include "runtime/kernels/cuda/product_tiles.h"

namespace kvc {

// match[i] = the j with the largest dot product of rows[i] and others[j], sums in float32; of equal ones the
// lowest j. Of unit vectors that is the nearest by cosine and by distance. Products are made tile by tile and
// never stored; blocks share the others in `num_parts` parts, each of whole tiles, which a second launch joins.
struct NearestRows {
  ProductRows rows, others;                          // of `element`; one part each, of equal widths
  DeviceElement element = DeviceElement::kBFloat16;  // or float16
  int num_parts = 1;
  float* part_product = nullptr;       // [num_parts, rows.num_rows], scratch
  std::int32_t* part_match = nullptr;  // likewise
  float* product = nullptr;            // [rows.num_rows]
  std::int32_t* match = nullptr;       // likewise
};
LaunchError nearest_rows_cuda(const NearestRows& params, void* stream);

}  // namespace kvc
