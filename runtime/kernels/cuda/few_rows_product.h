// Products of a few rows with a weight, on the GPU: a decoding step spends its time reading weights, so each is read from
// memory once for up to kMostFewRows rows.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

constexpr int kMostFewRows = 32;
constexpr int kWeightScaleGroup = 32;  // int8 weights: neighbours in a row that share a scale

enum class DeviceActivation { kNone, kSilu, kGelu, kGeluTanh };

// y = x W^T + bias; gated: W holds the gate's rows, then as many of what it gates, and y = activation(gate) * up;
// otherwise y = activation(y). Then y becomes scale * y and, with a softcap s, s tanh(y / s). Sums are float32.
struct FewRowsProduct {
  const void* x = nullptr;  // [num_rows, in] of `element`, 16-byte aligned
  DeviceElement element =
      DeviceElement::kBFloat16;  // or float16: of x and weights that are no codes
  int num_rows = 0;              // at most kMostFewRows
  int in = 0;                    // a multiple of 8
  int out = 0;
  const void* weight =
      nullptr;  // [out, in]; gated [2 out, in]; int8 codes: in rounded up to groups of 32
  const void* scales =
      nullptr;  // [rows of weight, groups] float16: weights are codes; null: numbers
  const float* bias = nullptr;  // [rows of weight], or null
  bool gated = false;
  DeviceActivation activation = DeviceActivation::kNone;
  float scale = 1;
  float softcap = 0;
  float* residual = nullptr;      // [num_rows, out] += y, or null
  void* output = nullptr;         // [num_rows, out] of `element` = y, or null
  float* output_float = nullptr;  // the same in float32, or null
};
LaunchError check_few_rows_product(const FewRowsProduct& params);

}  // namespace kvc
