// The next token from one row of logits: greedy, or temperature, top-k and top-p with a seeded
// generator.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <random>

namespace kvc {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;        // smallest set of tokens with at least this probability, in (0, 1]
};

// Throws UsageError naming the flag for anything out of range.
void check(const SamplingOptions& options);

// The same seed gives the same tokens on every platform: inverse distribution function of one
// uniform number per token.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, std::uint64_t seed);
  // [vocab_size] float32; Error for NaN and infinity.
  std::int64_t next(const at::Tensor& logits);

 private:
  SamplingOptions options_;
  std::mt19937_64 generator_;
};

}  // namespace kvc
