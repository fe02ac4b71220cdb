// The sequences of one run on a GPU: their prompts, then steps that feed a token of each.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/engine.h"
#include "runtime/generate.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"
#include "runtime/gpu/gpu_step.h"
#include "runtime/gpu/step_executor.h"
#include "runtime/reuse/prompt_reuse.h"

namespace kvc {

// The step's view of a run: every prompt `copies` times.
StepSequences step_sequences(const Engine::Ids& prompts, const GenerateOptions& options,
                             std::int64_t copies);
// Steps that read the rest of the prompts after prefill: those of the longest rest.
std::int64_t rest_of(const StepSequences& sequences);
// Tokens of each sequence before the first step, and `more`.
std::vector<std::int64_t> lengths_of(const StepSequences& sequences, std::int64_t more);

class GpuBatch {
 public:
  // All arguments must outlive it. reuse: of prompts, or null.
  GpuBatch(const GpuModel& model, GpuCache& cache, const StepSequences& sequences,
           const GenerateOptions& options, StepExecutor& executor, PromptReuse* reuse)
      : model_(model),
        cache_(cache),
        sequences_(sequences),
        options_(options),
        executor_(executor),
        reuse_(reuse),
        prefilled_(lengths_of(sequences, 0)),
        rest_(rest_of(sequences)),
        step_(model, cache, sequences, executor),
        program_bases_(cache.most_bases()) {}

  // Reads each prompt once, as far as prefill goes and the cache lacks it, in pieces of `chunk` tokens; the next
  // `copies` - 1 sequences become copies. Samples their first tokens if any are requested. Throws Interrupted.
  void read_prompts(std::int64_t chunk, std::int64_t copies);
  // Queues one step, and handles blocks that have left the window on the CPU.
  void queue_step();
  // Waits until the oldest pending step has ended.
  void wait_step();
  void wait_all() { executor_.wait(0); }

  std::int64_t queued() const { return queued_; }
  std::int64_t done() const { return done_; }  // steps that were waited for
  std::int64_t rest() const { return rest_; }  // steps that read prompts
  std::int64_t length(std::size_t sequence) const {
    return static_cast<std::int64_t>(sequences_.texts[sequence].size());
  }
  // Position of the next token after the steps so far.
  std::int64_t position(std::size_t sequence) const { return prefilled_[sequence] + done_; }
  // The token there, which the program has written. Error if logits were not finite.
  std::int32_t token(std::size_t sequence) const;
  // Logits of prompts' tokens so far, [n, vocab_size], of the first copy; under options.all_logits.
  const std::vector<at::Tensor>& prompt_logits() const { return prompt_logits_; }
  const StepState& state() const { return step_.state(); }
  GpuCache& cache() { return cache_; }

  // Report on its prompt, if prompts are reused.
  const std::optional<ReuseReport>& report(std::size_t sequence) const {
    return reports_[sequence];
  }

 private:
  bool reuses() const { return reuse_ != nullptr && sequences_.held == 0; }
  std::vector<std::int64_t> unread(std::size_t sequence) const;
  at::Tensor read_whole(std::size_t sequence, std::int64_t chunk);
  void end_prompt(std::size_t first, const at::Tensor& logits, std::size_t copies);

  const GpuModel& model_;
  GpuCache& cache_;
  const StepSequences& sequences_;
  const GenerateOptions& options_;
  StepExecutor& executor_;
  PromptReuse* reuse_;
  std::vector<std::int64_t> prefilled_;  // tokens before the first step
  std::int64_t rest_;
  std::int64_t queued_ = 0, done_ = 0;
  std::vector<at::Tensor> prompt_logits_;            // [num_sequences], undefined of copies
  std::vector<std::optional<ReuseReport>> reports_;  // [num_sequences] once prompts are read
  GpuStep step_;
  std::int64_t program_bases_;  // that it attends to
};

// Beam search: each beam is a sequence of the batch, and one that continues another's copies its cache.
// Searches one prompt, of which the batch's options.num_beams sequences are copies; adds the results of
// search_beams() (runtime/beam_search.h) to `result`. After an interruption, prompts are not read.
void search_gpu_beams(GpuBatch& batch, const GenerateOptions& options, std::int64_t prefill_chunk,
                      GenerateResult& result);

}  // namespace kvc
