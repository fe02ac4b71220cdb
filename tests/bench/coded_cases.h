// Cases over coded tokens, and what they share with others.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/kernels/decode_attention.h"
#include "tests/bench/kernel_cases.h"

namespace kvc {

inline constexpr std::int64_t kCaseHeads = 32, kCaseKvHeads = 8;

struct Angles {
  Angles(std::int64_t positions, std::int64_t pairs)
      : cos(static_cast<std::size_t>(positions * pairs)), sin(cos.size()) {
    for (std::int64_t i = 0; i < positions * pairs; ++i) {
      const double turn =
          static_cast<double>(i / pairs) *
          std::pow(1e4, -static_cast<double>(i % pairs) / static_cast<double>(pairs));
      cos[static_cast<std::size_t>(i)] = static_cast<float>(std::cos(turn));
      sin[static_cast<std::size_t>(i)] = static_cast<float>(std::sin(turn));
    }
  }
  std::vector<float> cos, sin;
};

struct Outputs {
  explicit Outputs(std::int64_t width)
      : memory(static_cast<std::size_t>(kCaseHeads * (width + 2))),
        partial{memory.data(), memory.data() + kCaseHeads, memory.data() + 2 * kCaseHeads} {}
  std::vector<float> memory;
  AttentionPartial partial;
};

// Codes of one KV head each, with a quarter of the bits of bfloat16, in every form of keys.
void add_coded_cases(std::int64_t tokens, std::int64_t head_dim, std::vector<Case>& cases);

}  // namespace kvc
