#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>

#include "core/elapsed.h"
#include "core/error.h"
#include "runtime/gpu/gpu_coding.h"
#include "runtime/gpu/gpu_compression.h"
#include "runtime/gpu/gpu_engine.h"
#include "runtime/gpu/gpu_prompt.h"
#include "runtime/gpu/gpu_step.h"
#include "runtime/gpu/step_support.h"

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;

// Steps that read what prefill leaves of the prompts: those of the longest rest.
std::int64_t rest_of(const StepSequences& sequences) {
  std::int64_t rest = 0;
  for (std::size_t i = 0; i < sequences.texts.size(); ++i) {
    rest = std::max(rest,
                    static_cast<std::int64_t>(sequences.texts[i].size()) - sequences.prefilled(i));
  }
  return rest;
}

// Tokens of each sequence before the first step, and `more`.
std::vector<std::int64_t> lengths_of(const StepSequences& sequences, std::int64_t more) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < sequences.texts.size(); ++i) {
    lengths.push_back(sequences.prefilled(i) + more);
  }
  return lengths;
}

// What the step needs to know of a run.
StepSequences sequences_of(const Engine::Ids& prompts, const GenerateOptions& options) {
  StepSequences sequences;
  sequences.sampling = options.sampling;
  sequences.prefill_tokens = options.prefill_tokens;
  for (const auto& prompt : prompts) {
    KVC_CHECK(!prompt.empty(), "an empty prompt; pass at least one token");
    for (std::int64_t sample = 0; sample < options.num_samples; ++sample) {
      sequences.seeds.push_back(options.seed + sequences.texts.size());
      sequences.texts.push_back(prompt);
    }
  }
  for (const std::int64_t length :
       lengths_of(sequences, rest_of(sequences) + options.max_new_tokens)) {
    sequences.capacity = std::max(sequences.capacity, length + 1);  // the last token is not fed
  }
  return sequences;
}

// One call of generate().
class GpuRun {
 public:
  GpuRun(const GpuModel& model, GpuCache& cache, const StepSequences& sequences,
         const GenerateOptions& options, const TokenVisitor& visit, StepExecutor& executor)
      : model_(model),
        cache_(cache),
        sequences_(sequences),
        options_(options),
        visit_(visit),
        executor_(executor),
        prefilled_(lengths_of(sequences, 0)),
        rest_(rest_of(sequences)),
        step_(model, cache, sequences, executor),
        ended_(sequences.texts.size(), false) {
    result_.sequences.resize(sequences.texts.size());
  }

  GenerateResult run(std::int64_t prefill_chunk) {
    const auto start = Clock::now();
    const std::int64_t num_steps = rest_ + options_.max_new_tokens - 1;
    try {
      read_prompts(prefill_chunk);
      step_until(rest_);
    } catch (const Interrupted&) {
      result_.interrupted = true;
    }
    result_.timing.prefill_seconds = seconds_since(start);
    const auto decode_start = Clock::now();
    step_until(num_steps);
    result_.timing.decode_seconds = seconds_since(decode_start);
    for (std::size_t i = 0; i < result_.sequences.size(); ++i) {
      result_.sequences[i].bytes = cache_.bytes(i);
    }
    return std::move(result_);
  }

 private:
  bool is_left() const { return std::count(ended_.begin(), ended_.end(), false) > 0; }
  std::int64_t length(std::size_t sequence) const {
    return static_cast<std::int64_t>(sequences_.texts[sequence].size());
  }

  // Prompts, or as much of them as prefill takes, and the tokens that follow.
  void read_prompts(std::int64_t chunk) {
    const auto samples = static_cast<std::size_t>(options_.num_samples);
    for (std::size_t i = 0; i < prefilled_.size(); i += samples) {
      const auto& text = sequences_.texts[i];
      const at::Tensor logits =
          read_gpu_prompt(model_, cache_, i, {text.begin(), text.begin() + prefilled_[i]},
                          {chunk, options_.all_logits, options_.stopped});
      code_gpu_prompt(model_, cache_, i, executor_);
      if (options_.all_logits) {
        result_.sequences[i].prompt_logits = logits.cpu();
      }
      for (std::size_t sample = i; sample < i + samples; ++sample) {
        step_.state().logits[static_cast<std::int64_t>(sample)].copy_(logits[-1]);
        if (sample > i) {
          cache_.copy(i, sample, prefilled_[i]);
        }
        result_.sequences[sample].num_tokens = prefilled_[i];
      }
      result_.timing.prefill_tokens += length(i);
    }
    if (rest_ + options_.max_new_tokens > 0) {
      executor_.run(step_.sampling());
      executor_.wait(0);
      take_all();
    }
  }

  // One step is queued ahead of the one whose tokens are taken, or none while logits are.
  void step_until(std::int64_t last) {
    while (!result_.interrupted && is_left() && taken_ < last) {
      result_.interrupted = options_.stopped && options_.stopped();
      if (result_.interrupted) {
        break;
      }
      const bool takes_logits = options_.all_logits && taken_ < rest_;
      if (queued_ == 0) {
        executor_.prepare(step_.program());
      }
      while (queued_ < std::min(taken_ + (takes_logits ? 1 : 2), last)) {
        executor_.replay();
        ++queued_;
        finish_step();
      }
      executor_.wait(static_cast<int>(queued_ - taken_ - 1));
      ++taken_;
      if (takes_logits) {
        take_logits();
      }
      take_all();
    }
    executor_.wait(0);
  }

  // What steps leave to the CPU: blocks that have left the window, once in many steps.
  void finish_step() {
    cache_.add_token();
    compress_gpu_blocks(model_, cache_, lengths_of(sequences_, queued_));
    code_gpu_blocks(model_, cache_, executor_);
  }

  // Of the prompts' tokens that the step has read.
  void take_logits() {
    for (std::size_t i = 0; i < prefilled_.size();
         i += static_cast<std::size_t>(options_.num_samples)) {
      if (prefilled_[i] + taken_ <= length(i)) {
        at::Tensor& logits = result_.sequences[i].prompt_logits;
        const at::Tensor row = step_.state().logits.narrow(0, static_cast<std::int64_t>(i), 1);
        logits = at::cat({logits, row.cpu()});
      }
    }
  }

  // The new token of every sequence that goes on, behind the steps so far; the program has written it.
  void take_all() {
    const at::Tensor& tokens = step_.state().tokens;
    for (std::size_t i = 0; i < ended_.size(); ++i) {
      const std::int64_t position = prefilled_[i] + taken_;
      if (position <= length(i)) {
        result_.sequences[i].num_tokens = position;
      }
      if (position >= length(i) && !ended_[i] && options_.max_new_tokens > 0) {
        result_.timing.decode_tokens += position > length(i) ? 1 : 0;
        const std::int64_t row = static_cast<std::int64_t>(i) * tokens.size(1);
        take(i, tokens.const_data_ptr<std::int32_t>()[row + position]);
      }
    }
  }
  void take(std::size_t sequence, std::int32_t token) {
    KVC_CHECK(
        token != kNoToken,
        "the model's logits are not finite; does the checkpoint hold NaN or infinity? --dtype "
        "bfloat16 has the widest range on a GPU");
    Generated& generated = result_.sequences[sequence];
    generated.num_tokens = length(sequence) + static_cast<std::int64_t>(generated.tokens.size());
    const auto& stops = options_.stop_ids;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      ended_[sequence] = true;
      return;
    }
    generated.tokens.push_back(token);
    const bool goes_on = !visit_ || visit_(sequence, token);
    ended_[sequence] =
        !goes_on || static_cast<std::int64_t>(generated.tokens.size()) >= options_.max_new_tokens;
  }

  const GpuModel& model_;
  GpuCache& cache_;
  const StepSequences& sequences_;
  const GenerateOptions& options_;
  const TokenVisitor& visit_;
  StepExecutor& executor_;
  std::vector<std::int64_t> prefilled_;  // tokens before the first step
  std::int64_t rest_;                    // steps that read prompts
  std::int64_t queued_ = 0, taken_ = 0;  // steps
  GpuStep step_;
  std::vector<bool> ended_;
  GenerateResult result_;
};

}  // namespace

GenerateResult GpuEngine::generate(const Engine::Ids& prompts, const GenerateOptions& options,
                                   const TokenVisitor& visit) const {
  const c10::InferenceMode guard;
  check_gpu_generation(options);
  check(options.sampling);
  const StepSequences sequences = sequences_of(prompts, options);
  const std::int64_t rest = rest_of(sequences);
  check_memory(lengths_of(sequences, 0), rest, options.max_new_tokens);
  GpuCache cache(plan_, model_->dtype, kv_dtype_, executor_->device(), page_tokens_,
                 lengths_of(sequences, rest + options.max_new_tokens));
  GenerateResult result =
      GpuRun(*model_, cache, sequences, options, visit, *executor_).run(prefill_chunk_);
  kv_peak_bytes_ = cache.peak_bytes();
  return result;
}

}  // namespace kvc
