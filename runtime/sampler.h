// The next token from one row of logits: greedy, or drawn with a seeded generator after temperature,
// top-k, top-p and min-p. Penalty and filters are transformers', in its order.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <random>
#include <vector>

namespace kvc {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy
  std::int64_t top_k = 0;  // the k most probable, and ties with the last of them; 0: all
  double top_p = 1;        // smallest set of tokens with at least this probability, in (0, 1]
  double min_p = 0;  // at least this share of the most probable token's probability, in [0, 1]
  // Positive logits of tokens that already occur are divided by this, negative ones multiplied;
  // positive. Also for greedy choices.
  double repetition_penalty = 1;
};

// Throws UsageError naming the flag for anything out of range.
void check(const SamplingOptions& options);

// Error for NaN and infinity, and where all are minus infinity. logits: [vocab_size] float32
void check_logits(const at::Tensor& logits);

struct Candidate {
  std::int64_t id = 0;
  double weight = 0;  // proportional to its probability
};

// The same seed gives the same tokens on every platform: inverse distribution function of one
// uniform number per token.
class Sampler {
 public:
  // `prompt`: tokens that the repetition penalty counts from the beginning.
  Sampler(const SamplingOptions& options, std::uint64_t seed,
          const std::vector<std::int64_t>& prompt = {});
  // logits: [vocab_size] float32; Error for NaN and infinity. The token becomes part of the text.
  std::int64_t next(const at::Tensor& logits);
  // The candidates of a draw, at least one: by ascending id, or most probable first if top_p is below
  // 1.
  std::vector<Candidate> distribution(const at::Tensor& logits) const;

 private:
  void mark(std::int64_t id);

  SamplingOptions options_;
  std::mt19937_64 generator_;
  std::vector<bool> seen_;  // by id, as far as the largest one; empty without a penalty
};

}  // namespace kvc
