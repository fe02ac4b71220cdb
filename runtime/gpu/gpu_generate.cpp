#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/progress.h"
#include "runtime/gpu/gpu_batch.h"
#include "runtime/gpu/gpu_engine.h"

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;

// One call of generate().
class GpuRun {
 public:
  GpuRun(GpuBatch& batch, std::size_t num_sequences, const GenerateOptions& options,
         const TokenVisitor& visit)
      : batch_(batch), options_(options), visit_(visit), ended_(num_sequences, false) {
    result_.sequences.resize(num_sequences);
  }

  GenerateResult run(std::int64_t prefill_chunk) {
    const auto start = Clock::now();
    try {
      batch_.read_prompts(prefill_chunk, options_.num_samples);
      if (options_.prompts_read) {
        options_.prompts_read();
      }
      take_all();
      step_until(batch_.rest());
    } catch (const Interrupted&) {
      result_.interrupted = true;
    }
    result_.timing.prefill_seconds = seconds_since(start);
    const auto decode_start = Clock::now();
    step_until(batch_.rest() + options_.max_new_tokens - 1);
    result_.timing.decode_seconds = seconds_since(decode_start);
    for (std::size_t i = 0; i < ended_.size(); ++i) {
      Generated& generated = result_.sequences[i];
      generated.bytes = batch_.cache().bytes(i);
      generated.prompt_logits = batch_.prompt_logits()[i];
      generated.reuse = batch_.report(i);
      result_.timing.prefill_tokens +=
          i % static_cast<std::size_t>(options_.num_samples) == 0 ? batch_.length(i) : 0;
    }
    return std::move(result_);
  }

 private:
  bool is_left() const { return std::count(ended_.begin(), ended_.end(), false) > 0; }

  // One step is queued ahead of the one whose tokens are taken, or none while logits are.
  void step_until(std::int64_t last) {
    while (!result_.interrupted && is_left() && batch_.done() < last) {
      result_.interrupted = options_.stopped && options_.stopped();
      if (result_.interrupted) {
        break;
      }
      const bool takes_logits = options_.all_logits && batch_.done() < batch_.rest();
      while (batch_.queued() < std::min(batch_.done() + (takes_logits ? 1 : 2), last)) {
        batch_.queue_step();
      }
      batch_.wait_step();
      take_all();
    }
    batch_.wait_all();
  }

  // The new token of every sequence that goes on.
  void take_all() {
    for (std::size_t i = 0; i < ended_.size(); ++i) {
      const std::int64_t position = batch_.position(i);
      if (position <= batch_.length(i)) {
        result_.sequences[i].num_tokens = position;
      }
      if (position >= batch_.length(i) && !ended_[i] && options_.max_new_tokens > 0) {
        result_.timing.decode_tokens += position > batch_.length(i) ? 1 : 0;
        take(i, batch_.token(i));
      }
    }
  }
  void take(std::size_t sequence, std::int32_t token) {
    Generated& generated = result_.sequences[sequence];
    generated.num_tokens =
        batch_.length(sequence) + static_cast<std::int64_t>(generated.tokens.size());
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

  GpuBatch& batch_;
  const GenerateOptions& options_;
  const TokenVisitor& visit_;
  std::vector<bool> ended_;
  GenerateResult result_;
};

}  // namespace

GenerateResult GpuEngine::generate(const Engine::Ids& prompts, const GenerateOptions& options,
                                   const TokenVisitor& visit) const {
  const c10::InferenceMode guard;
  check(options.sampling);
  if (options.num_beams > 1) {
    return search_beams(prompts, options);
  }
  const StepSequences sequences = step_sequences(prompts, options, options.num_samples);
  check_memory(sequences, options);
  GpuCache cache = new_cache(sequences, options);
  GpuBatch batch(*model_, cache, sequences, options, *executor_, reuse_.get());
  GenerateResult result = GpuRun(batch, sequences.texts.size(), options, visit).run(prefill_chunk_);
  kv_peak_bytes_ = cache.peak_bytes();
  return result;
}

GenerateResult GpuEngine::search_beams(const Engine::Ids& prompts,
                                       const GenerateOptions& options) const {
  GenerateResult result;
  std::vector<StepSequences> beams;
  for (const auto& prompt : prompts) {
    beams.push_back(step_sequences({prompt}, options, options.num_beams));
    check_memory(beams.back(), options);
  }
  kv_peak_bytes_ = 0;
  for (const StepSequences& sequences : beams) {
    GpuCache cache = new_cache(sequences, options);
    GpuBatch batch(*model_, cache, sequences, options, *executor_, reuse_.get());
    search_gpu_beams(batch, options, prefill_chunk_, result);
    kv_peak_bytes_ = std::max(kv_peak_bytes_, cache.peak_bytes());
  }
  return result;
}

GpuCache GpuEngine::new_cache(const StepSequences& sequences,
                              const GenerateOptions& options) const {
  const std::int64_t rest = rest_of(sequences);
  return {plan_,
          model_->dtype,
          kv_dtype_,
          executor_->device(),
          page_tokens_,
          lengths_of(sequences, rest + options.max_new_tokens),
          {policy_, lengths_of(sequences, 0)},
          reuse_ != nullptr && reuse_->drops_tokens()};
}

}  // namespace kvc
