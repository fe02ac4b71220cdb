#include "runtime/gpu/gpu_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/checkpoint.h"
#include "core/error.h"
#include "model/config.h"
#include "runtime/gpu/gpu_batch.h"
#include "runtime/gpu/gpu_forecast.h"
#include "runtime/gpu/gpu_policy.h"
#include "runtime/gpu/step_support.h"
#include "runtime/plan_source.h"
#include "runtime/policies/principal_policy.h"

namespace kvc {

GpuEngine GpuEngine::load(const std::filesystem::path& directory, const EngineOptions& given,
                          std::unique_ptr<StepExecutor> executor) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const ModelConfig config = read_model_config(checkpoint);
  EngineOptions options = given;
  options.page_tokens = given.page_tokens.value_or(kScaledRows);
  const CacheTypes types = cache_types(checkpoint, config, options);
  GpuEngine engine;
  engine.plan_ = plan_of(checkpoint, config);
  check_gpu_model(config, engine.plan_);
  check_gpu_options(options, types, config, engine.plan_);
  check_generated_block(engine.plan_, is_integer(types.kv) ? KvDtype::kFloat16 : types.kv);
  engine.executor_ = std::move(executor);
  engine.model_ = std::make_unique<GpuModel>(load_gpu_model(
      checkpoint, engine.plan_, types.compute, parse_weight_type(options.weight_dtype),
      engine.executor_->device(), engine.executor_->free_bytes()));
  engine.reuse_ = gpu_reuse(checkpoint, *engine.model_, options);
  engine.kv_dtype_ = types.kv;
  engine.policy_ = options.policy;
  engine.page_tokens_ = types.page_tokens;
  engine.prefill_chunk_ = options.prefill_chunk;
  engine.memory_bytes_ = options.memory_bytes;
  return engine;
}

// Beside the cache; longest_prompt: of those that are read.
std::int64_t GpuEngine::work_bytes(const std::vector<std::int64_t>& lengths,
                                   std::int64_t new_tokens, std::int64_t longest_prompt) const {
  const ModelConfig& model = config();
  // Activations of a piece of a prompt: two residual streams, the attention's four, the MLP's three; logits.
  const std::int64_t piece =
      prefill_chunk_ > 0 ? std::min(prefill_chunk_, longest_prompt) : longest_prompt;
  const std::int64_t width =
      4 * model.hidden_size + 2 * model.q_dim() + 4 * model.kv_dim() + 3 * model.intermediate_size;
  const auto sequences = static_cast<std::int64_t>(lengths.size());
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  return 2 * piece * width + 4 * (sequences + 1) * (width + 2 * model.vocab_size) +
         8 * model.head_dim * (longest + new_tokens) +
         group_work_bytes(plan_, model, sequences, longest, new_tokens,
                          executor_->multiprocessors()) +
         coded_prompt_bytes(plan_, model, sequences, longest_prompt, piece) +
         policy_work_bytes(plan_, policy_, kv_dtype_, model, lengths, new_tokens,
                           executor_->multiprocessors()) +
         (reuse_ != nullptr ? reuse_work_bytes(model, longest_prompt) : 0);
}

GpuEngine::Need GpuEngine::need_of(const std::vector<std::int64_t>& lengths,
                                   std::int64_t new_tokens) const {
  return {gpu_cache_bytes(plan_, kv_dtype_, page_tokens_, lengths, new_tokens, policy_),
          work_bytes(lengths, new_tokens, *std::max_element(lengths.begin(), lengths.end()))};
}

void GpuEngine::check_memory(const StepSequences& sequences, const GenerateOptions& options) const {
  const std::vector<std::int64_t> lengths = lengths_of(sequences, 0);
  const std::int64_t rest = rest_of(sequences);
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  check_memory([&](std::int64_t tokens) { return need_of(lengths, rest + tokens); }, 0,
               lengths.size(), longest + rest, options);
}

// One layer's keys and values are rebuilt beside the cache: parts, and put together.
void GpuEngine::check_turn(const GpuCache& cache, const StepSequences& sequences,
                           const GenerateOptions& options) const {
  constexpr std::int64_t kCopies = 3, kElementBytes = 2;
  const auto length = static_cast<std::int64_t>(sequences.texts.front().size());
  const std::int64_t added = length - sequences.held;
  const std::int64_t rows = kCopies * 2 * kElementBytes * plan_.kv_dim() * length;
  check_memory(
      [&](std::int64_t tokens) {
        return Need{gpu_turn_forecast(cache, sequences.held, added, tokens).most,
                    rows + work_bytes({length}, tokens, added)};
      },
      cache.bytes(0).total(), 1, length, options);
}

void GpuEngine::check_memory(const NeedOf& need_of, std::int64_t held, std::size_t num_sequences,
                             std::int64_t longest, const GenerateOptions& options) const {
  const std::int64_t new_tokens = options.max_new_tokens, free = executor_->free_bytes();
  const auto fits = [&](std::int64_t tokens) {
    const Need need = need_of(tokens);
    return need.cache - held + need.work <= free &&
           need.cache <= memory_bytes_.value_or(need.cache);
  };
  if (fits(new_tokens)) {
    return;
  }
  std::int64_t most = -1, above = new_tokens;  // the most new tokens that fit
  while (above - most > 1) {
    const std::int64_t middle = most + (above - most) / 2;
    (fits(middle) ? most : above) = middle;
  }
  const Need need = need_of(new_tokens);
  fail(
      "{} sequences of up to {} tokens take {} bytes of KV cache and {} to compute in; the GPU has "
      "{} free beside {} bytes of weights{}{}; {}",
      num_sequences, longest + new_tokens, need.cache, need.work, free, weight_bytes(),
      held > 0 ? fmt::format(" and {} of earlier turns", held) : "",
      memory_bytes_ ? fmt::format(" and --memory allows {}", *memory_bytes_) : "",
      most > 0 ? fmt::format("--max-new-tokens {} fits", most)
               : "the prompts alone do not fit: pass fewer or shorter ones");
}

}  // namespace kvc
