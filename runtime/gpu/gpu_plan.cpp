#include "runtime/gpu/gpu_plan.h"

#include <algorithm>
#include <vector>

#include "core/checkpoint.h"
#include "core/error.h"
#include "model/checkpoint_config.h"
#include "runtime/gpu/gpu_forecast.h"
#include "runtime/gpu/step_support.h"
#include "runtime/kernels/cuda/device_rows.h"
#include "runtime/memory/share_of_original.h"
#include "runtime/plan_source.h"

namespace kvc {

Json gpu_plan_json(const RunOptions& options, const Prompts& prompts) {
  const Checkpoint checkpoint = Checkpoint::open(options.model);
  const ModelConfig config = read_model_config(checkpoint);
  const KvPlan plan = plan_of(checkpoint, config);
  EngineOptions engine = options.engine;
  engine.page_tokens = engine.page_tokens.value_or(kScaledRows);
  const CacheTypes types = cache_types(checkpoint, config, engine);
  check_gpu_model(config, plan);
  check_gpu_options(engine, types, config, plan);
  check_gpu_generation(options.generate);
  const GenerateOptions& generate = options.generate;
  std::vector<std::int64_t> lengths;  // before the first step
  std::int64_t num_tokens = 0, rest = 0;
  for (const auto& ids : prompts.ids) {
    const auto length = static_cast<std::int64_t>(ids.size());
    const std::int64_t prefilled =
        generate.prefill_tokens > 0 ? std::min(length, generate.prefill_tokens) : length;
    lengths.insert(lengths.end(), static_cast<std::size_t>(generate.num_samples), prefilled);
    rest = std::max(rest, length - prefilled);
    // The last token is never fed back.
    num_tokens +=
        generate.num_samples * (length + std::max<std::int64_t>(0, generate.max_new_tokens - 1));
  }
  const GpuCacheBytes bytes = gpu_cache_forecast(plan, types.kv, types.page_tokens, lengths,
                                                 rest + generate.max_new_tokens, engine.policy);
  const std::int64_t original = original_bytes(plan, num_tokens, KvDtype::kFloat16);
  Json json;
  json["kv_dtype"] = to_string(types.kv);
  json["tokens"] = num_tokens;
  json["reading_bytes"] = bytes.most;
  json["end_bytes"] = bytes.generating;
  json["original_bytes"] = original;
  json["kept_ratio"] = share_of_original(bytes.generating, original);
  json["expansion_bytes"] = 0;
  if (engine.memory_bytes) {
    KVC_CHECK(bytes.most <= *engine.memory_bytes,
              "KV memory: the caches take up to {} bytes on a GPU, --memory allows {}; raise it to "
              "that, or lower --max-new-tokens",
              bytes.most, *engine.memory_bytes);
    json["memory_bytes"] = *engine.memory_bytes;
    json["expanded_groups"] = json["num_groups"] = 0;
    json["peak_bytes"] = bytes.most;
  }
  return json;
}

}  // namespace kvc
