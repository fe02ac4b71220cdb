// Tokens that are sampled, against the reference: the same ones.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

struct SampleShape {
  int vocab_size = 1000;
  float temperature = 0;
  int top_k = 0;
  float top_p = 1, min_p = 0, repetition_penalty = 1;
  float spread = 3;     // of the logits
  bool ties = false;    // many logits are equal
  bool banned = false;  // every other one is -infinity
};

// What a run of steps writes: the device's arrays and the reference's.
struct SampleState {
  std::vector<std::int32_t> ids, positions, rows, tokens;
  std::vector<std::uint32_t> seen;
};

constexpr int kSequences = 3, kSteps = 6, kStride = 12;

SampleTokens params_of(const SampleShape& shape) {
  return {.num_sequences = kSequences,
          .vocab_size = shape.vocab_size,
          .temperature = shape.temperature,
          .top_k = shape.top_k,
          .top_p = shape.top_p,
          .min_p = shape.min_p,
          .repetition_penalty = shape.repetition_penalty,
          .tokens_stride = kStride};
}

std::vector<float> logits_of(const SampleShape& shape, unsigned seed) {
  std::vector<float> logits = case_numbers(std::int64_t{kSequences} * shape.vocab_size, seed);
  for (float& x : logits) {
    x = shape.ties ? static_cast<float>(static_cast<int>(2 * x)) : shape.spread * x;
  }
  for (std::size_t i = 0; shape.banned && i < logits.size(); i += 2) {
    logits[i] = -std::numeric_limits<float>::infinity();
  }
  return logits;
}

std::string sample_case(const SampleShape& shape, KernelBackend& backend) {
  const bool penalised = shape.repetition_penalty != 1;
  const std::vector<std::uint64_t> seeds = {7, 0x123456789ABCDEF0, 7};
  SampleState state{{0, 0, 0},
                    {3, 0, 4},
                    {4, 1, 5},
                    std::vector<std::int32_t>(kSequences * kStride, -7),
                    std::vector<std::uint32_t>(
                        static_cast<std::size_t>(kSequences * ((shape.vocab_size + 31) / 32)), 5)};
  SampleTokens device = params_of(shape);
  device.seen = penalised ? backend.upload(state.seen) : nullptr;
  device.seeds = backend.upload(seeds);
  device.ids = backend.upload(state.ids);
  device.positions = backend.upload(state.positions);
  device.counters[0] = backend.upload(state.rows);
  device.tokens = backend.upload(state.tokens);
  for (unsigned step = 0; step < kSteps; ++step) {
    const std::vector<float> logits = logits_of(shape, 100 + step);
    SampleTokens host = params_of(shape);
    host.logits = logits.data();
    host.seen = penalised ? state.seen.data() : nullptr;
    host.seeds = seeds.data();
    host.ids = state.ids.data();
    host.positions = state.positions.data();
    host.counters[0] = state.rows.data();
    host.tokens = state.tokens.data();
    sample_tokens_reference(host);
    device.logits = backend.upload(logits);
    backend.run(device);
    if (backend.download(device.ids, kSequences) != state.ids) {
      return "ids of step " + std::to_string(step);
    }
  }
  if (backend.download(device.positions, kSequences) != state.positions ||
      backend.download(device.counters[0], kSequences) != state.rows) {
    return "positions or counters";
  }
  if (penalised && backend.download(device.seen, state.seen.size()) != state.seen) {
    return "tokens of the text";
  }
  return backend.download(device.tokens, state.tokens.size()) == state.tokens ? "" : "tokens";
}

std::string not_finite_case(float bad, KernelBackend& backend) {
  SampleShape shape;
  std::vector<float> logits = logits_of(shape, 1);
  logits[static_cast<std::size_t>(shape.vocab_size) + 5] = bad;
  const std::vector<std::int32_t> zeros(kSequences, 0);
  SampleTokens params = params_of(shape);
  params.logits = backend.upload(logits);
  params.ids = backend.upload(zeros);
  params.positions = backend.upload(zeros);
  params.tokens = backend.unwritten<std::int32_t>(kSequences * kStride);
  backend.run(params);
  const std::vector<std::int32_t> tokens = backend.download(params.tokens, kSequences * kStride);
  return tokens[1] >= 0 && tokens[kStride + 1] == kNoToken && tokens[2 * kStride + 1] >= 0
             ? ""
             : "which logits are finite";
}

// Texts go on with 1 and 9 where they have such, even where logits are not finite.
std::string given_case(KernelBackend& backend) {
  const SampleShape shape;
  std::vector<float> logits = logits_of(shape, 1);
  logits[3] = NAN;
  const std::vector<std::int32_t> positions = {4, 2, 4};
  std::vector<std::int32_t> given(kSequences * kStride, kNoToken);
  given[5] = 1;            // of the first sequence
  given[kStride + 3] = 9;  // of the second one; the third's next token is chosen
  given[2 * kStride + 4] = 7;
  SampleTokens params = params_of(shape);
  params.logits = backend.upload(logits);
  params.ids = backend.upload(std::vector<std::int32_t>(kSequences, 0));
  params.positions = backend.upload(positions);
  params.tokens = backend.unwritten<std::int32_t>(kSequences * kStride);
  params.given = backend.upload(given);
  backend.run(params);
  const auto third = std::max_element(logits.end() - shape.vocab_size, logits.end()) -
                     (logits.end() - shape.vocab_size);
  const std::vector<std::int32_t> expected = {1, 9, static_cast<std::int32_t>(third)};
  const std::vector<std::int32_t> tokens = backend.download(params.tokens, kSequences * kStride);
  return backend.download(params.ids, kSequences) == expected && tokens[5] == 1 &&
                 tokens[kStride + 3] == 9 && tokens[2 * kStride + 5] == expected[2]
             ? ""
             : "tokens of the text";
}

}  // namespace

std::vector<KernelCase> sample_cases() {
  std::vector<KernelCase> cases;
  cases.push_back({"sample_given", given_case});
  const auto add = [&](const std::string& name, const SampleShape& shape) {
    cases.push_back({"sample_" + name,
                     [shape](KernelBackend& backend) { return sample_case(shape, backend); }});
  };
  add("greedy", {});
  add("greedy_ties", {.ties = true});
  add("greedy_penalty", {.repetition_penalty = 1.5f});
  add("temperature", {.temperature = 0.8f});
  add("few_tokens", {.vocab_size = 37, .temperature = 2});
  add("top_k", {.temperature = 1, .top_k = 5});
  add("top_k_ties", {.temperature = 1, .top_k = 5, .ties = true});
  add("top_p", {.temperature = 1, .top_p = 0.7f});
  add("top_p_ties", {.temperature = 1, .top_p = 0.4f, .ties = true});
  add("min_p", {.temperature = 1.5f, .min_p = 0.1f});
  add("all_of_them", {.temperature = 0.9f,
                      .top_k = 50,
                      .top_p = 0.95f,
                      .min_p = 0.02f,
                      .repetition_penalty = 1.2f});
  add("flat", {.temperature = 1, .top_p = 0.5f, .spread = 1e-9f});
  // Distances from the largest logit beyond those of which each thread has a sum.
  add("top_k_wide", {.temperature = 1, .top_k = 700, .spread = 40});
  add("top_p_wide", {.temperature = 60, .top_p = 0.9f, .spread = 40});
  add("top_p_very_wide", {.temperature = 4000, .top_p = 0.8f, .spread = 2000});
  // More ids than a block's threads load at once, and a last word of the text's tokens that is not full.
  add("top_p_many", {.vocab_size = 5003, .temperature = 1.5f, .top_p = 0.95f});
  add("top_p_many_penalty",
      {.vocab_size = 5003, .temperature = 0.7f, .top_p = 0.9f, .repetition_penalty = 1.3f});
  add("top_k_p_ties",
      {.vocab_size = 3001, .temperature = 2, .top_k = 900, .top_p = 0.8f, .ties = true});
  add("all_equal", {.temperature = 1, .top_p = 0.3f, .spread = 0});
  add("banned", {.temperature = 1, .top_p = 0.9f, .banned = true});
  add("banned_top_k", {.temperature = 1, .top_k = 600, .top_p = 0.99f, .banned = true});
  cases.push_back({"sample_nan", [](KernelBackend& backend) {
                     return not_finite_case(std::numeric_limits<float>::quiet_NaN(), backend);
                   }});
  cases.push_back({"sample_infinity", [](KernelBackend& backend) {
                     return not_finite_case(std::numeric_limits<float>::infinity(), backend);
                   }});
  return cases;
}

}  // namespace kvc::testing
