// Partial softmaxes of attention, combined on the GPU.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/kernels/cuda/launch.h"

namespace kvc {

// The softmax of parts of the tokens, of several sequences, in GPU memory. A part without tokens has max
// -infinity and sum 0; its output is not read.
struct DevicePartials {
  float* max = nullptr;  // [num_sequences, num_parts, num_heads]
  float* sum = nullptr;  // likewise: of exp(score - max); null: ones
  float* output =
      nullptr;  // [num_sequences, num_parts, num_heads, width]: of exp(score - max) * value
  int num_parts = 0;

  // Index of max and sum; and of output in units of its width.
  KVC_HOST_DEVICE std::int64_t row(int sequence, int part, int num_heads, int head) const {
    return (static_cast<std::int64_t>(sequence) * num_parts + part) * num_heads + head;
  }
};

// In how many parts a launch shares its sequences' tokens. Three blocks are on every multiprocessor at once; so many parts that
// the fewest of these places stay empty in few rounds, which each cost time to begin and to end, up to four; and no fewer than
// two tiles of 32 tokens a part. blocks_per_part: of the launch's grid, without its parts.
inline int attention_parts(int multiprocessors, int blocks_per_part, int num_tokens) {
  constexpr double kRoundCost = 0.05;  // of a round, measured on an H200
  const int places = 3 * multiprocessors, most = num_tokens / 64;
  int parts = 1;
  double best = 0;
  for (int tried = 1; tried <= most && tried * blocks_per_part <= 4 * places; ++tried) {
    const int blocks = tried * blocks_per_part, rounds = (blocks + places - 1) / places;
    const double used = static_cast<double>(blocks) / (rounds * places) - kRoundCost * rounds;
    if (used > best) {
      best = used;
      parts = tried;
    }
  }
  return parts;
}

// Combines the parts of up to kMaxSources groups of partials: the attention over all their tokens. What it makes is
// itself a source, of one part: max log_sum, no sum, output output_float. So join segments whose values were summed in
// different ranks, once their outputs are values.
struct CombinePartials {
  static constexpr int kMaxSources = 4;
  DevicePartials sources[kMaxSources];
  int num_sources = 0;
  int num_sequences = 0;
  int num_heads = 0;
  int width = 0;           // head_dim, or the rank that values are summed in
  void* output = nullptr;  // [num_sequences, num_heads, width], or null
  DeviceElement element = DeviceElement::kBFloat16;  // of output: bfloat16 or float16
  float* output_float = nullptr;                     // the same in float32, or null
  float* log_sum = nullptr;  // [num_sequences, num_heads] log of the sum of exp(score), or null
};

}  // namespace kvc
