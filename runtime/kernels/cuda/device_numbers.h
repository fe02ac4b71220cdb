// 16-bit and 8-bit floating point, the same on the GPU and the CPU, to the bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/kernels/cuda/device_qualifiers.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace kvc {

// Types of elements: kernels are compiled for either.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

KVC_HOST_DEVICE std::uint32_t float_bits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

KVC_HOST_DEVICE float float_of_bits(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

KVC_HOST_DEVICE float to_float(BFloat16 x) {
  return float_of_bits(static_cast<std::uint32_t>(x.bits) << 16);
}

KVC_HOST_DEVICE float to_float(Float16 x) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(x.bits));
#else
  const float size = float_of_bits(static_cast<std::uint32_t>(x.bits & 0x7FFF) << 13) *
                     5192296858534827628530496329220096.0f;          // 2^112
  const std::uint32_t special = size >= 65536.0f ? 0x7F800000u : 0;  // infinity or no number
  return float_of_bits(float_bits(size) | special |
                       static_cast<std::uint32_t>(x.bits & 0x8000) << 16);
#endif
}

// To the nearest, ties to even.
KVC_HOST_DEVICE std::uint16_t narrow_bits(BFloat16, float x) {
#ifdef __CUDA_ARCH__
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  const std::uint32_t bits = float_bits(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) {
    return 0x7FFF;
  }
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
#endif
}

KVC_HOST_DEVICE std::uint16_t narrow_bits(Float16, float x) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(x));
#else
  const std::uint32_t all = float_bits(x), sign = all >> 16 & 0x8000, size = all & 0x7FFFFFFF;
  std::uint32_t bits;
  if (size > 0x7F800000) {
    return 0x7FFF;
  }
  if (size >= 0x477FF000) {  // 65520 and above
    bits = 0x7C00;
  } else if (size < 0x38800000) {  // subnormal: the last bit of 1/2 + x is worth 2^-24
    bits = float_bits(float_of_bits(size) + 0.5f) - 0x3F000000;
  } else {
    bits = (size + 0xFFF + (size >> 13 & 1) - 0x38000000) >> 13;
  }
  return static_cast<std::uint16_t>(sign | bits);
#endif
}

template <class T>
KVC_HOST_DEVICE T narrow(float x) {
  return {narrow_bits(T{}, x)};
}

// Two numbers side by side, as tensor cores take them.
template <class T>
KVC_HOST_DEVICE std::uint32_t pack_pair(float low, float high) {
  return narrow_bits(T{}, low) | static_cast<std::uint32_t>(narrow_bits(T{}, high)) << 16;
}
#ifdef __CUDA_ARCH__
template <>
__device__ __forceinline__ std::uint32_t pack_pair<BFloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ std::uint32_t pack_pair<Float16>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
#endif

template <class T>
KVC_HOST_DEVICE float low_of_pair(std::uint32_t pair) {
  return to_float(T{static_cast<std::uint16_t>(pair & 0xFFFF)});
}
template <class T>
KVC_HOST_DEVICE float high_of_pair(std::uint32_t pair) {
  return to_float(T{static_cast<std::uint16_t>(pair >> 16)});
}

// 2^15 and byte `index` of a word: its place in the number's bits is all that there is to convert.
constexpr float kByteBase = 32768;
KVC_HOST_DEVICE float byte_above_base(std::uint32_t word, int index) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(
      __byte_perm(word, 0x47000000u, 0x7504u + 0x10u * static_cast<unsigned>(index)));
#else
  return float_of_bits(0x47000000u | (word >> (8 * index) & 0xFFu) << 8);
#endif
}

// Low halves of two words, or high ones, side by side; a word's two lowest bytes as halves.
KVC_HOST_DEVICE std::uint32_t low_halves(std::uint32_t first, std::uint32_t second) {
#ifdef __CUDA_ARCH__
  return __byte_perm(first, second, 0x5410);
#else
  return (first & 0xFFFFu) | second << 16;
#endif
}
KVC_HOST_DEVICE std::uint32_t high_halves(std::uint32_t first, std::uint32_t second) {
#ifdef __CUDA_ARCH__
  return __byte_perm(first, second, 0x7632);
#else
  return first >> 16 | (second & 0xFFFF0000u);
#endif
}
KVC_HOST_DEVICE std::uint32_t spread_bytes(std::uint32_t word) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0, 0x4140);
#else
  return (word & 0xFFu) | (word & 0xFF00u) << 8;
#endif
}

// Both numbers of a pair of float16, rounded to the nearest.
KVC_HOST_DEVICE std::uint32_t add_pairs(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  const __half2 sum =
      __hadd2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&sum);
#else
  return pack_pair<Float16>(low_of_pair<Float16>(a) + low_of_pair<Float16>(b),
                            high_of_pair<Float16>(a) + high_of_pair<Float16>(b));
#endif
}
KVC_HOST_DEVICE std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  const __half2 product =
      __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&product);
#else
  return pack_pair<Float16>(low_of_pair<Float16>(a) * low_of_pair<Float16>(b),
                            high_of_pair<Float16>(a) * high_of_pair<Float16>(b));
#endif
}

// 8-bit floating point, 4 bits of exponent and 3 of mantissa, largest number 448, no infinity (e4m3).
KVC_HOST_DEVICE float float8_to_float(std::uint8_t bits) {
  if ((bits & 0x7F) == 0x7F) {
    return float_of_bits(0x7FC00000);
  }
  const std::uint32_t half = (bits & 0x7Fu) << 7 | (bits & 0x80u) << 8;  // 2^-8 of the number
  return 256.0f * to_float(Float16{static_cast<std::uint16_t>(half)});
}

// Four of them, `scale` times each; the numbers side by side in a word.
KVC_HOST_DEVICE void float8_to_floats(std::uint32_t word, float scale, float (&x)[4]) {
  KVC_UNROLL
  for (int i = 0; i < 2; ++i) {  // bytes i and i + 2, as float16 numbers 2^-8 of theirs
    const std::uint32_t bytes = word >> (8 * i);
    const std::uint32_t pair = (bytes & 0x007F007Fu) * 0x80u + (bytes & 0x00800080u) * 0x100u;
    x[i] = 256.0f * scale * low_of_pair<Float16>(pair);
    x[i + 2] = 256.0f * scale * high_of_pair<Float16>(pair);
  }
  if ((((word & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) != 0) {  // some are no number
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((word >> (8 * i) & 0x7Fu) == 0x7Fu) {
        x[i] = float_of_bits(0x7FC00000);
      }
    }
  }
}

// To the nearest, ties to even; saturates.
KVC_HOST_DEVICE std::uint8_t float_to_float8(float x) {
  const std::uint32_t all = float_bits(x), sign = all >> 24 & 0x80, size = all & 0x7FFFFFFF;
  std::uint32_t bits;
  if (size > 0x7F800000) {
    bits = 0x7F;
  } else if (size >= 0x43E00000) {  // 448
    bits = 0x7E;
  } else if (size < 0x3C800000) {  // subnormal: the last bit of 2^14 + x is worth 2^-9
    bits = float_bits(float_of_bits(size) + 16384.0f) - 0x46800000;
  } else {
    bits = (size + 0x7FFFF + (size >> 20 & 1) - 0x3C000000) >> 20;
    bits = bits > 0x7E ? 0x7E : bits;
  }
  return static_cast<std::uint8_t>(sign | bits);
}

}  // namespace kvc
