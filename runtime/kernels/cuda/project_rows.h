// Rows of activations to latents, on tensor cores.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"
#include "runtime/kernels/cuda/product_tiles.h"

namespace kvc {

// h_t = P (y_t - mean) = sum over layers l of P_l y_l,t + offset: the least-squares latents of a group (rule ls),
// coefficients of coded caches and coordinates along principal directions. y's parts are the layers' keys and
// values in the order of P's columns. Sums in float32.
struct ProjectRows {
  ProductRows rows;               // y, of `element`: [num_tokens] from parts of part_width columns
  ProductRows projection;         // P, of `element`: [rank, rows.width()] in one part
  const float* offset = nullptr;  // [rank], -P mean; or null
  DeviceElement element = DeviceElement::kBFloat16;  // or float16
  void* output = nullptr;                            // [num_tokens, rank] 16-bit, or null
  DeviceElement output_element = DeviceElement::kFloat16;
  float* output_float = nullptr;  // the same in float32, or null
};
LaunchError project_rows_cuda(const ProjectRows& params, void* stream);

}  // namespace kvc
