// Rotation of keys by their positions.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_qualifiers.h"

namespace kvc {

// Angles of the rotary pairs, of the model's own scaling, in GPU memory.
struct DeviceRope {
  const float* cos = nullptr;  // [num_positions, num_pairs]
  const float* sin = nullptr;  // likewise
  int num_pairs = 0;           // channels from 2 num_pairs on stay as they are
  bool interleaved = false;    // pairs (2i, 2i+1), otherwise (i, i + num_pairs)
};

KVC_HOST_DEVICE void rotate_pair(float cos, float sin, float& first, float& second) {
  const float turned = first * cos - second * sin;
  second = second * cos + first * sin;
  first = turned;
}

KVC_HOST_DEVICE int first_of_pair(const DeviceRope& rope, int pair) {
  return rope.interleaved ? 2 * pair : pair;
}
KVC_HOST_DEVICE int second_of_pair(const DeviceRope& rope, int pair) {
  return rope.interleaved ? 2 * pair + 1 : pair + rope.num_pairs;
}

}  // namespace kvc
