// Loads of several neighbours at once.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "runtime/kernels/cuda/device_qualifiers.h"

namespace kvc {

struct FourNumbers {
  float x[4];
};

#ifndef __CUDA_ARCH__
// What a GPU does with a load that is not aligned to its size: the emulator's program ends.
inline void require_aligned(const void* from, std::uintptr_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0) {
    std::fputs("a load is not aligned to its size\n", stderr);
    std::abort();
  }
}
#endif

KVC_HOST_DEVICE FourNumbers four_floats(const float* from) {  // 16-byte aligned
#ifdef __CUDA_ARCH__
  const float4 v = *reinterpret_cast<const float4*>(from);
  return {{v.x, v.y, v.z, v.w}};
#else
  require_aligned(from, 16);
  return {{from[0], from[1], from[2], from[3]}};
#endif
}

// Two words, 8-byte aligned.
KVC_HOST_DEVICE void two_words(const std::uint32_t* from, std::uint32_t (&to)[2]) {
#ifdef __CUDA_ARCH__
  const uint2 v = *reinterpret_cast<const uint2*>(from);
  to[0] = v.x, to[1] = v.y;
#else
  require_aligned(from, 8);
  to[0] = from[0], to[1] = from[1];
#endif
}

}  // namespace kvc
