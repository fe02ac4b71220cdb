// Random numbers that are a function of a seed and of where they are used, so that no state is kept: Philox 4x32-10
// (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011).
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_qualifiers.h"

namespace kvc {

struct PhiloxBlock {
  std::uint32_t word[4];
};

KVC_HOST_DEVICE PhiloxBlock philox(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter.word[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ key0,
                static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ key1,
                static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// 64 random bits of a seed for the token at `position`.
KVC_HOST_DEVICE std::uint64_t random_bits(std::uint64_t seed, std::uint32_t position) {
  const PhiloxBlock block = philox({{position, 0, 0, 0}}, static_cast<std::uint32_t>(seed),
                                   static_cast<std::uint32_t>(seed >> 32));
  return std::uint64_t{block.word[1]} << 32 | block.word[0];
}

// floor(bits / 2^64 * total): below total, evenly, for bits of all values.
KVC_HOST_DEVICE std::uint64_t scaled_bits(std::uint64_t bits, std::uint64_t total) {
#ifdef __CUDA_ARCH__
  return __umul64hi(bits, total);
#else
  const std::uint64_t low = (bits & 0xFFFFFFFF) * (total & 0xFFFFFFFF);
  const std::uint64_t first = (bits >> 32) * (total & 0xFFFFFFFF) + (low >> 32);
  const std::uint64_t second = (bits & 0xFFFFFFFF) * (total >> 32) + (first & 0xFFFFFFFF);
  return (bits >> 32) * (total >> 32) + (first >> 32) + (second >> 32);
#endif
}

}  // namespace kvc
