#include "runtime/gpu/gpu_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/checkpoint.h"
#include "core/error.h"
#include "model/checkpoint_config.h"
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
  engine.kv_dtype_ = types.kv;
  engine.policy_ = options.policy;
  engine.page_tokens_ = types.page_tokens;
  engine.prefill_chunk_ = options.prefill_chunk;
  engine.memory_bytes_ = options.memory_bytes;
  return engine;
}

GpuEngine::Need GpuEngine::need_of(const std::vector<std::int64_t>& lengths,
                                   std::int64_t new_tokens, std::int64_t longest_prompt) const {
  const ModelConfig& model = config();
  Need need;
  need.cache = gpu_cache_bytes(plan_, kv_dtype_, page_tokens_, lengths, new_tokens, policy_);
  // Activations of a piece of a prompt: two residual streams, the attention's four, the MLP's three; logits.
  const std::int64_t piece =
      prefill_chunk_ > 0 ? std::min(prefill_chunk_, longest_prompt) : longest_prompt;
  const std::int64_t width =
      4 * model.hidden_size + 2 * model.q_dim() + 4 * model.kv_dim() + 3 * model.intermediate_size;
  const auto sequences = static_cast<std::int64_t>(lengths.size());
  need.work = 2 * piece * width + 4 * (sequences + 1) * (width + 2 * model.vocab_size) +
              8 * model.head_dim * (longest_prompt + new_tokens) +
              group_work_bytes(plan_, model, sequences, longest_prompt, new_tokens,
                               executor_->multiprocessors()) +
              policy_work_bytes(plan_, policy_, model, lengths, new_tokens);
  return need;
}

void GpuEngine::check_memory(const StepSequences& sequences, const GenerateOptions& options) const {
  const std::vector<std::int64_t> lengths = lengths_of(sequences, 0);
  const std::int64_t rest = rest_of(sequences), new_tokens = options.max_new_tokens;
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const std::int64_t free = executor_->free_bytes();
  const auto fits = [&](std::int64_t tokens) {
    const Need need = need_of(lengths, rest + tokens, longest);
    return need.cache + need.work <= free && need.cache <= memory_bytes_.value_or(need.cache);
  };
  if (fits(new_tokens)) {
    return;
  }
  std::int64_t most = -1, above = new_tokens;  // the most new tokens that fit
  while (above - most > 1) {
    const std::int64_t middle = most + (above - most) / 2;
    (fits(middle) ? most : above) = middle;
  }
  const Need need = need_of(lengths, rest + new_tokens, longest);
  fail(
      "{} sequences of up to {} tokens take {} bytes of KV cache and {} to compute in; the GPU has "
      "{} "
      "free beside {} bytes of weights{}; {}",
      lengths.size(), longest + rest + new_tokens, need.cache, need.work, free, weight_bytes(),
      memory_bytes_ ? fmt::format(" and --memory allows {}", *memory_bytes_) : "",
      most > 0 ? fmt::format("--max-new-tokens {} fits", most)
               : "not even the prompts fit: pass fewer or shorter ones");
}

}  // namespace kvc
