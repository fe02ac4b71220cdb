// Generation: continuations of prompts, with the time of each phase.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/attention/part_times.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"

namespace kvc {

struct GenerateOptions {
  std::int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  std::uint64_t seed = 0;        // sequence i of the result samples from seed + i
  std::int64_t num_samples = 1;  // continuations of every prompt, which share its cache
  // Above 1: greedy beam search with that many beams, without a visitor; samples are then the best
  // finished beams, num_samples <= num_beams.
  std::int64_t num_beams = 1;
  std::vector<std::int64_t>
      stop_ids;  // a sequence ends with the first of these, which is not returned
  std::int64_t prefill_tokens = 0;  // prompt tokens that prefill takes; the rest extends. 0: all
  bool all_logits = false;          // keep the logits of every prompt token
  Stopped stopped;                  // called before every step and while prompts are read
  std::function<void()>
      prompts_read{};  // called when all prompts are read, before the first new token
};

struct Generated {
  std::vector<std::int64_t> tokens;
  at::Tensor prompt_logits;  // [num_prompt_tokens, vocab_size] with all_logits; of the first sample
  std::int64_t num_tokens = 0;         // whose keys and values the cache holds at the end
  KvBytes bytes;                       // at the end
  std::optional<ReuseReport> reuse{};  // of its prompt, if the engine reuses prompts
};

struct GenerateTiming {
  double prefill_seconds = 0;  // to the first new token
  double decode_seconds = 0;
  std::int64_t prefill_tokens = 0;  // of all sequences
  std::int64_t decode_tokens =
      0;  // tokens of forward passes after the first new token, of all sequences
  PartTimes prefill_parts, decode_parts;  // with EngineOptions::time_parts
  RebuildCounts rebuilt;                  // with EngineOptions::selective
};

struct GenerateResult {
  std::vector<Generated>
      sequences;  // the samples of prompt i are i * num_samples and those that follow
  GenerateTiming timing;
  bool interrupted = false;  // `stopped` ended it: sequences have the tokens so far
};

// Runs both halves of a generation, timed: `read` reads the prompts, which Interrupted ends, `write` the rest.
void run_timed(const Engine& engine, const std::function<void()>& read,
               const std::function<void()>& write, GenerateResult& result);

// Called for every new token with the sequence's index. False ends the sequence after it.
using TokenVisitor = std::function<bool(std::size_t, std::int64_t)>;

// The first half of a generation: reads each prompt into its new sequence, with what options.prefill_tokens leaves as a
// continuation of the compressed cache. Logits of every prompt: all rows with options.all_logits, else the last.
std::vector<at::Tensor> read_prompts(const Engine& engine, const Engine::Ids& prompts,
                                     const GenerateOptions& options,
                                     std::vector<Sequence>& sequences);

// Continues every prompt (at least one token each), all in one batch.
GenerateResult generate(const Engine& engine, const Engine::Ids& prompts,
                        const GenerateOptions& options, const TokenVisitor& visit = {});

}  // namespace kvc
