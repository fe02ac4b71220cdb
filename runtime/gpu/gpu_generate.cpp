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

// What the step needs to know of a run.
StepSequences sequences_of(const Engine::Ids& prompts, const GenerateOptions& options) {
  StepSequences sequences;
  sequences.sampling = options.sampling;
  for (const auto& prompt : prompts) {
    KVC_CHECK(!prompt.empty(), "an empty prompt; pass at least one token");
    for (std::int64_t sample = 0; sample < options.num_samples; ++sample) {
      sequences.seeds.push_back(options.seed + sequences.texts.size());
      sequences.texts.push_back(prompt);
      sequences.capacity = std::max(
          sequences.capacity, static_cast<std::int64_t>(prompt.size()) + options.max_new_tokens);
    }
  }
  ++sequences.capacity;  // the last token, which is not fed
  return sequences;
}

// Tokens of each sequence, and `more`.
std::vector<std::int64_t> lengths_of(const StepSequences& sequences, std::int64_t more) {
  std::vector<std::int64_t> lengths;
  for (const auto& text : sequences.texts) {
    lengths.push_back(static_cast<std::int64_t>(text.size()) + more);
  }
  return lengths;
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
        lengths_(lengths_of(sequences, 0)),
        step_(model, cache, sequences, executor),
        ended_(lengths_.size(), false) {
    result_.sequences.resize(lengths_.size());
  }

  GenerateResult run(std::int64_t prefill_chunk) {
    const auto start = Clock::now();
    try {
      read_prompts(prefill_chunk);
    } catch (const Interrupted&) {
      result_.interrupted = true;
    }
    result_.timing.prefill_seconds = seconds_since(start);
    const auto decode_start = Clock::now();
    if (!result_.interrupted && options_.max_new_tokens > 1 && num_left() > 0) {
      decode();
    }
    result_.timing.decode_seconds = seconds_since(decode_start);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      result_.sequences[i].bytes = cache_.bytes(i);
    }
    return std::move(result_);
  }

 private:
  std::int64_t num_left() const { return std::count(ended_.begin(), ended_.end(), false); }

  // Prompts, and the first new tokens.
  void read_prompts(std::int64_t chunk) {
    const auto samples = static_cast<std::size_t>(options_.num_samples);
    for (std::size_t i = 0; i < lengths_.size(); i += samples) {
      const at::Tensor logits = read_gpu_prompt(model_, cache_, i, sequences_.texts[i],
                                                {chunk, options_.all_logits, options_.stopped});
      code_gpu_prompt(model_, cache_, i, executor_);
      if (options_.all_logits) {
        result_.sequences[i].prompt_logits = logits.cpu();
      }
      for (std::size_t sample = i; sample < i + samples; ++sample) {
        step_.state().logits[static_cast<std::int64_t>(sample)].copy_(logits[-1]);
        if (sample > i) {
          cache_.copy(i, sample, lengths_[i]);
        }
        result_.sequences[sample].num_tokens = lengths_[i];
      }
      result_.timing.prefill_tokens += lengths_[i];
    }
    if (options_.max_new_tokens > 0) {
      executor_.run(step_.sampling());
      executor_.wait(0);
      take_all(0);
    }
  }

  // One step is queued ahead of the one whose tokens are taken.
  void decode() {
    executor_.prepare(step_.program());
    std::int64_t queued = 0, taken = 0;
    while (num_left() > 0 && taken + 1 < options_.max_new_tokens) {
      result_.interrupted = options_.stopped && options_.stopped();
      if (result_.interrupted) {
        break;
      }
      while (queued < std::min(taken + 2, options_.max_new_tokens - 1)) {
        executor_.replay();
        ++queued;
        finish_step(queued);
      }
      executor_.wait(static_cast<int>(queued - taken - 1));
      result_.timing.decode_tokens += num_left();
      take_all(++taken);
    }
    executor_.wait(0);
  }

  // What steps leave to the CPU: blocks that have left the window, once in many steps.
  void finish_step(std::int64_t num_steps) {
    cache_.add_token();
    compress_gpu_blocks(model_, cache_, lengths_of(sequences_, num_steps));
    code_gpu_blocks(model_, cache_, executor_);
  }

  // New token `index` of every sequence that goes on; the program has written it.
  void take_all(std::int64_t index) {
    const at::Tensor& tokens = step_.state().tokens;
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      if (!ended_[i]) {
        const std::int64_t row = static_cast<std::int64_t>(i) * tokens.size(1);
        take(i, tokens.const_data_ptr<std::int32_t>()[row + lengths_[i] + index]);
      }
    }
  }
  void take(std::size_t sequence, std::int32_t token) {
    KVC_CHECK(
        token != kNoToken,
        "the model's logits are not finite; does the checkpoint hold NaN or infinity? --dtype "
        "bfloat16 has the widest range on a GPU");
    Generated& generated = result_.sequences[sequence];
    generated.num_tokens = lengths_[sequence] + static_cast<std::int64_t>(generated.tokens.size());
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
  std::vector<std::int64_t> lengths_;
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
  check_memory(lengths_of(sequences, 0), options.max_new_tokens);
  GpuCache cache(plan_, model_->dtype, kv_dtype_, executor_->device(), page_tokens_,
                 lengths_of(sequences, options.max_new_tokens));
  GenerateResult result =
      GpuRun(*model_, cache, sequences, options, visit, *executor_).run(prefill_chunk_);
  kv_peak_bytes_ = cache.peak_bytes();
  return result;
}

}  // namespace kvc
