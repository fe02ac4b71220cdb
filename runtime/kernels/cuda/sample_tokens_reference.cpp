#include <algorithm>
#include <vector>

#include "runtime/kernels/cuda/device_random.h"
#include "runtime/kernels/cuda/sample_arithmetic.h"

namespace kvc {
namespace {

struct RankedToken {
  std::int32_t id = 0;
  std::uint32_t key = 0;
  float weight = 0;
  std::uint64_t mass = 0;
};

float logit(const SampleTokens& params, int sequence, int id) {
  const float x = params.logits[static_cast<std::int64_t>(sequence) * params.vocab_size + id];
  const std::int64_t words = (params.vocab_size + 31) / 32;
  return params.seen == nullptr ? x
                                : penalised(params, x, params.seen[sequence * words + id / 32], id);
}

// Every token, most probable first, ties to the lower id.
std::vector<RankedToken> ranked_tokens(const SampleTokens& params, int sequence, float largest) {
  std::vector<RankedToken> tokens;
  for (int id = 0; id < params.vocab_size; ++id) {
    const float x = logit(params, sequence, id);
    const float weight = relative_weight(largest, x, params.temperature);
    tokens.push_back({id, distance_key(largest, x), weight, probability_mass(weight)});
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const RankedToken& a, const RankedToken& b) { return a.key < b.key; });
  return tokens;
}

std::vector<RankedToken> kept_tokens(const SampleTokens& params, std::vector<RankedToken> tokens) {
  if (params.top_k > 0 && params.top_k < params.vocab_size) {
    const std::uint32_t last = tokens[static_cast<std::size_t>(params.top_k) - 1].key;
    tokens.erase(std::find_if(tokens.begin(), tokens.end(),
                              [&](const RankedToken& token) { return token.key > last; }),
                 tokens.end());
  }
  if (params.top_p < 1) {
    std::uint64_t total = 0, passed = 0;
    for (const RankedToken& token : tokens) {
      total += token.mass;
    }
    const std::uint64_t wanted = wanted_mass(params.top_p, total);
    std::size_t count = 0;
    while (passed < wanted) {
      passed += tokens[count++].mass;
    }
    tokens.resize(count);
  }
  std::vector<RankedToken> kept;
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(kept),
               [&](const RankedToken& token) { return token.weight >= params.min_p; });
  std::sort(kept.begin(), kept.end(),
            [](const RankedToken& a, const RankedToken& b) { return a.id < b.id; });
  return kept;
}

std::int32_t sample_reference(const SampleTokens& params, int sequence) {
  std::int32_t best = 0;
  for (int id = 0; id < params.vocab_size; ++id) {
    const float x = logit(params, sequence, id);
    if (!(x < INFINITY)) {
      return kNoToken;
    }
    best = x > logit(params, sequence, best) ? id : best;
  }
  if (params.temperature == 0) {
    return best;
  }
  const std::vector<RankedToken> kept =
      kept_tokens(params, ranked_tokens(params, sequence, logit(params, sequence, best)));
  std::uint64_t total = 0, passed = 0;
  for (const RankedToken& token : kept) {
    total += token.mass;
  }
  const std::uint64_t drawn =
      scaled_bits(random_bits(params.seeds[sequence],
                              static_cast<std::uint32_t>(params.positions[sequence] + 1)),
                  total);
  for (const RankedToken& token : kept) {
    passed += token.mass;
    if (drawn < passed) {
      return token.id;
    }
  }
  return kNoToken;
}

}  // namespace

void sample_tokens_reference(const SampleTokens& params) {
  for (int sequence = 0; sequence < params.num_sequences; ++sequence) {
    finish_sample(params, sequence, sample_reference(params, sequence));
  }
}

}  // namespace kvc
