#include "runtime/gpu/gpu_batch.h"

#include <algorithm>

#include "core/error.h"
#include "runtime/gpu/gpu_coding.h"
#include "runtime/gpu/gpu_compression.h"
#include "runtime/gpu/gpu_policy.h"
#include "runtime/gpu/gpu_prompt.h"
#include "runtime/gpu/gpu_reuse.h"

namespace kvc {

std::int64_t rest_of(const StepSequences& sequences) {
  std::int64_t rest = 0;
  for (std::size_t i = 0; i < sequences.texts.size(); ++i) {
    const auto length = static_cast<std::int64_t>(sequences.texts[i].size());
    rest = std::max(rest, length - sequences.prefilled(i));
  }
  return rest;
}

std::vector<std::int64_t> lengths_of(const StepSequences& sequences, std::int64_t more) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < sequences.texts.size(); ++i) {
    lengths.push_back(sequences.prefilled(i) + more);
  }
  return lengths;
}

StepSequences step_sequences(const Engine::Ids& prompts, const GenerateOptions& options,
                             std::int64_t copies) {
  StepSequences sequences;
  sequences.sampling = options.sampling;
  sequences.prefill_tokens = options.prefill_tokens;
  for (const auto& prompt : prompts) {
    KVC_CHECK(!prompt.empty(), "an empty prompt; pass at least one token");
    for (std::int64_t copy = 0; copy < copies; ++copy) {
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

void GpuBatch::read_prompts(std::int64_t chunk, std::int64_t copies) {
  check_token_ids(sequences_.texts, model_.config.vocab_size);
  const auto step = static_cast<std::size_t>(copies);
  prompt_logits_.resize(prefilled_.size());
  reports_.resize(prefilled_.size());
  std::vector<bool> is_read(prefilled_.size(), false);
  // Donors are looked for before prompts of the same batch become some.
  for (std::size_t i = 0; i < prefilled_.size() && reuses(); i += step) {
    const std::optional<at::Tensor> logits = read_reused_prompt(
        model_, *reuse_, cache_, i, unread(i), options_.stopped, reports_[i].emplace());
    is_read[i] = logits.has_value();
    if (logits) {
      end_prompt(i, *logits, step);
    }
  }
  for (std::size_t i = 0; i < prefilled_.size(); i += step) {
    if (!is_read[i]) {
      end_prompt(i, read_whole(i, chunk), step);
    }
  }
  if (rest_ + options_.max_new_tokens > 0) {
    executor_.run(step_.sampling());
    executor_.wait(0);
  }
}

std::vector<std::int64_t> GpuBatch::unread(std::size_t sequence) const {
  const auto& text = sequences_.texts[sequence];
  return {text.begin() + sequences_.held, text.begin() + prefilled_[sequence]};
}

// Logits of its last token, or under all_logits of all.
at::Tensor GpuBatch::read_whole(std::size_t sequence, std::int64_t chunk) {
  const std::vector<std::int64_t> ids = unread(sequence);
  const at::Tensor logits =
      read_gpu_prompt(model_, cache_, sequence, ids,
                      {chunk, options_.all_logits, options_.stopped, sequences_.held}, executor_);
  if (reuses()) {
    keep_gpu_prompt(*reuse_, cache_, sequence, ids);
  }
  return logits;
}

// The `copies` sequences from the first on have it.
void GpuBatch::end_prompt(std::size_t first, const at::Tensor& logits, std::size_t copies) {
  code_gpu_prompt(model_, cache_, first, executor_);
  if (options_.all_logits) {
    prompt_logits_[first] = logits.cpu();
  }
  for (std::size_t copy = first; copy < first + copies; ++copy) {
    state().logits[static_cast<std::int64_t>(copy)].copy_(logits[-1]);
    if (copy > first) {
      cache_.copy(first, copy, prefilled_[first]);
      reports_[copy] = reports_[first];
    }
  }
}

void GpuBatch::queue_step() {
  if (const std::int64_t bases = cache_.most_bases(); bases != program_bases_) {
    executor_.wait(0);  // the program before goes
    step_.rebuild(model_, cache_, sequences_, executor_);
    program_bases_ = bases;
    executor_.prepare(step_.program());
  } else if (queued_ == 0) {
    executor_.prepare(step_.program());
  }
  executor_.replay();
  ++queued_;
  cache_.add_token();
  const std::vector<std::int64_t> lengths = lengths_of(sequences_, queued_);
  compress_gpu_blocks(model_, cache_, lengths);
  end_policy_step(model_, cache_, lengths, executor_);
  code_gpu_blocks(model_, cache_, executor_);
}

void GpuBatch::wait_step() {
  executor_.wait(static_cast<int>(queued_ - done_ - 1));
  ++done_;
  for (std::size_t i = 0; i < prefilled_.size() && options_.all_logits; ++i) {
    if (prompt_logits_[i].defined() && position(i) <= length(i)) {
      const at::Tensor row = state().logits.narrow(0, static_cast<std::int64_t>(i), 1);
      prompt_logits_[i] = at::cat({prompt_logits_[i], row.cpu()});
    }
  }
}

std::int32_t GpuBatch::token(std::size_t sequence) const {
  const at::Tensor& tokens = step_.state().tokens;
  const std::int64_t row = static_cast<std::int64_t>(sequence) * tokens.size(1);
  const std::int32_t token = tokens.const_data_ptr<std::int32_t>()[row + position(sequence)];
  KVC_CHECK(token != kNoToken,
            "the model's logits are not finite; does the checkpoint hold NaN or infinity? --dtype "
            "bfloat16 has the widest range on a GPU");
  return token;
}

}  // namespace kvc
