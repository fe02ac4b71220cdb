// What sampling makes of one logit, and of a token: alike in the kernel and in its reference.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/kernels/cuda/device_qualifiers.h"
#include "runtime/kernels/cuda/sample_tokens.h"

namespace kvc {

// How far a logit is below the largest, in multiples of 2^-20; everything beyond 4096 alike.
KVC_HOST_DEVICE std::uint32_t distance_key(float largest, float logit) {
  const float distance = (largest - logit) * 1048576.0f;
  return distance < 4294967040.0f ? static_cast<std::uint32_t>(distance) : 0xFFFFFFFFu;
}
// The probability over the most probable token's, in multiples of 2^-40.
KVC_HOST_DEVICE float relative_weight(float largest, float logit, float temperature) {
  return expf((logit - largest) / temperature);
}
KVC_HOST_DEVICE std::uint64_t probability_mass(float weight) {
  return static_cast<std::uint64_t>(weight * 1099511627776.0f);
}
// The least mass that top-p asks for, of `total`.
KVC_HOST_DEVICE std::uint64_t wanted_mass(float top_p, std::uint64_t total) {
  const auto wanted =
      static_cast<std::uint64_t>(ceil(static_cast<double>(top_p) * static_cast<double>(total)));
  return wanted < 1 ? 1 : wanted > total ? total : wanted;
}
// A logit, where `seen` is the word of the text's tokens that has a bit for its id.
KVC_HOST_DEVICE float penalised(const SampleTokens& params, float x, std::uint32_t seen, int id) {
  if ((seen >> (id % 32) & 1) == 0) {
    return x;
  }
  return x < 0 ? x * params.repetition_penalty : x / params.repetition_penalty;
}
KVC_HOST_DEVICE void finish_sample(const SampleTokens& params, int sequence, std::int32_t token) {
  const std::int32_t position = params.positions[sequence] + 1;
  if (params.given != nullptr && position < params.tokens_stride) {
    const std::int32_t given = params.given[sequence * params.tokens_stride + position];
    token = given == kNoToken ? token : given;
  }
  if (params.seen != nullptr && token >= 0) {
    const std::int64_t words = (params.vocab_size + 31) / 32;
    params.seen[sequence * words + token / 32] |= 1u << (token % 32);
  }
  params.ids[sequence] = token < 0 ? 0 : token;
  if (position < params.tokens_stride) {
    params.positions[sequence] = position;
    for (std::int32_t* counter : params.counters) {
      if (counter != nullptr) {
        ++counter[sequence];
      }
    }
    params.tokens[sequence * params.tokens_stride + position] = token;
  }
}

}  // namespace kvc
