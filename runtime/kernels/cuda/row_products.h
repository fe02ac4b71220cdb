// Products of rows on tensor cores, and what is told from them: latents, the nearest of other rows (SemShareKV), and
// what is lost when tokens are merged, by which the best are chosen.
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

// Rules by weights: the cosine of each row of a and b, sums in float32; 0 where one is zero.
struct RowCosines {
  const void* a = nullptr;  // [num_rows, width], of `element`
  const void* b = nullptr;  // likewise
  int num_rows = 0, width = 0;
  DeviceElement element = DeviceElement::kFloat16;  // or bfloat16
  float* cosines = nullptr;                         // [num_rows]
};

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

// match[i] = the j with the largest dot product of rows[i] and others[j], sums in float32; of equal ones the
// lowest j. For unit vectors that is the nearest by cosine and by distance. Products are made tile by tile and
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

}  // namespace kvc
