#include "runtime/gpu/gpu_turns.h"

#include <c10/core/InferenceMode.h>

#include "runtime/gpu/step_support.h"

namespace kvc {

void GpuTurns::clear() {
  batch_.reset();
  cache_.reset();
  ids_.clear();
}

// For the turn's prompt and what may follow it.
void GpuTurns::make_room() {
  if (!cache_) {
    engine_.check_memory(sequences_, options_);
    cache_ = std::make_unique<GpuCache>(engine_.new_cache(sequences_, options_));
    return;
  }
  engine_.check_turn(*cache_, sequences_, options_);
  cache_->grow(0, lengths_of(sequences_, options_.max_new_tokens).front());
}

void GpuTurns::read(const std::vector<std::int64_t>& added, const GenerateOptions& options) try {
  const c10::InferenceMode guard;
  check(options.sampling);
  batch_.reset();
  options_ = options;
  options_.prefill_tokens = 0;
  options_.all_logits = false;
  std::vector<std::int64_t> text = ids_;
  text.insert(text.end(), added.begin(), added.end());
  sequences_ = step_sequences({text}, options_, 1);
  sequences_.held = static_cast<std::int64_t>(ids_.size());
  make_room();
  batch_.emplace(*engine_.model_, *cache_, sequences_, options_, *engine_.executor_,
                 engine_.reuse_.get());
  batch_->read_prompts(engine_.prefill_chunk_, 1);
  if (options.prompts_read) {
    options.prompts_read();
  }
  ids_ = std::move(text);
} catch (...) {
  clear();
  throw;
}

std::int64_t GpuTurns::next() {
  token_ = batch_->token(0);
  return token_;
}

void GpuTurns::append() {
  const c10::InferenceMode guard;
  batch_->queue_step();
  batch_->wait_step();
  ids_.push_back(token_);
}

std::unique_ptr<TurnSequence> GpuEngine::turns() const {
  check_gpu_turns(policy_);
  return std::make_unique<GpuTurns>(*this);
}

}  // namespace kvc
