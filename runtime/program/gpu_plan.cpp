#include <algorithm>
#include <vector>

#include "core/checkpoint.h"
#include "core/error.h"
#include "model/cache_plan.h"
#include "model/config.h"
#include "runtime/gpu/gpu_batch.h"
#include "runtime/gpu/gpu_forecast.h"
#include "runtime/gpu/step_support.h"
#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/plan_source.h"
#include "runtime/policies/principal_policy.h"
#include "runtime/program/memory_plan.h"

namespace kvc {
namespace {

// Prompts that are in memory together: all of them, or one whose beams are searched.
std::vector<Engine::Ids> batches_of(const Prompts& prompts, const GenerateOptions& generate) {
  if (generate.num_beams <= 1) {
    return {prompts.ids};
  }
  std::vector<Engine::Ids> batches;
  for (const auto& ids : prompts.ids) {
    batches.push_back({ids});
  }
  return batches;
}

// A count for each sequence, at its end; the last token is never fed back.
std::vector<std::int64_t> tokens_of(const StepSequences& sequences,
                                    const GenerateOptions& generate) {
  std::vector<std::int64_t> tokens;
  for (const auto& text : sequences.texts) {
    tokens.push_back(static_cast<std::int64_t>(text.size()) +
                     std::max<std::int64_t>(0, generate.max_new_tokens - 1));
  }
  return tokens;
}

}  // namespace

MemoryPlan gpu_memory_plan(const RunOptions& options, const Prompts& prompts) {
  const Checkpoint checkpoint = Checkpoint::open(options.model);
  const ModelConfig config = read_model_config(checkpoint);
  check_token_ids(prompts.ids, config.vocab_size);
  const KvPlan plan = plan_of(checkpoint, config);
  EngineOptions engine = options.engine;
  engine.page_tokens = engine.page_tokens.value_or(kScaledRows);
  const CacheTypes types = cache_types(checkpoint, config, engine);
  check_gpu_model(config, plan);
  check_gpu_options(engine, types, config, plan);
  check_generated_block(plan, is_integer(types.kv) ? KvDtype::kFloat16 : types.kv);
  const GenerateOptions& generate = options.generate;
  MemoryPlan result{.kv_dtype = types.kv, .limit = engine.memory_bytes};
  for (const Engine::Ids& batch : batches_of(prompts, generate)) {
    const StepSequences sequences = step_sequences(
        batch, generate, generate.num_beams > 1 ? generate.num_beams : generate.num_samples);
    const GpuCacheBytes own =
        gpu_cache_forecast(plan, types.kv, types.page_tokens, lengths_of(sequences, 0),
                           rest_of(sequences) + generate.max_new_tokens, engine.policy);
    result.reading = std::max(result.reading, own.most);
    result.end = std::max(result.end, own.generating);
    std::int64_t tokens = 0, original = 0;
    for (const std::int64_t count : tokens_of(sequences, generate)) {
      tokens += count;
      original += original_allocation(plan, count, types.page_tokens, cache_dtype(config));
    }
    result.tokens = std::max(result.tokens, tokens);
    result.original = std::max(result.original, original);
  }
  result.peak = result.reading;
  KVC_CHECK(result.reading <= engine.memory_bytes.value_or(result.reading),
            "KV memory: the caches take up to {} bytes on a GPU, --memory allows {}; raise it to "
            "that, or lower --max-new-tokens",
            result.reading, *engine.memory_bytes);
  return result;
}

}  // namespace kvc
