#include "runtime/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "model/checkpoint_config.h"
#include "runtime/expansion.h"
#include "runtime/memory_budget.h"
#include "runtime/memory_forecast.h"
#include "runtime/plan_source.h"
#include "runtime/prompts.h"

namespace kvc {
namespace {

// Sums over the sequences of a run.
struct RunForecast {
  std::int64_t tokens = 0;
  std::int64_t reading = 0;              // most while prompts are read
  std::int64_t end = 0;                  // most afterwards, nothing rebuilt
  std::int64_t original = 0;             // of the unconverted model at the end
  std::int64_t reserve = 0;              // kept free for every sequence's next block
  std::vector<std::int64_t> expansions;  // [num_groups] at the end
};

RunForecast forecast_run(const KvPlan& plan, const CacheTypes& types, const Prompts& prompts,
                         const GenerateOptions& generate) {
  RunForecast run;
  run.expansions.assign(plan.groups.size(), 0);
  for (const auto& ids : prompts.ids) {
    const auto length = static_cast<std::int64_t>(ids.size());
    const std::int64_t prefill =
        generate.prefill_tokens > 0 ? std::min(length, generate.prefill_tokens) : length;
    // The last token is never fed back.
    const std::int64_t more =
        length - prefill + std::max<std::int64_t>(0, generate.max_new_tokens - 1);
    CacheForecast cache(plan, 0, std::vector<GroupTokens>(plan.groups.size()), types.kv,
                        types.page_tokens, MergeSpread::kNone);  // what make_room asks for
    run.reading += cache.read(prefill);
    run.end += cache.extend(more);
    run.tokens += length + std::max<std::int64_t>(0, generate.max_new_tokens - 1);
    run.original += original_bytes(plan, cache.num_tokens(), types.kv);
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      run.expansions[group] += expansion_bytes(plan, static_cast<int>(group), cache.tokens()[group],
                                               types.kv, types.page_tokens);
    }
    const std::int64_t before = cache.bytes();
    run.reserve += std::max<std::int64_t>(0, cache.extend(plan.policy.block_tokens) - before);
  }
  return run;
}

// How many groups fit beside the caches under `limit`, and the most that is then in use.
struct UnderLimit {
  std::int64_t groups = 0, peak = 0;
};

UnderLimit apply_limit(const RunForecast& run, std::int64_t limit) {
  const std::int64_t least = std::max(run.reading, run.end);
  KVC_CHECK(least <= limit,
            "KV memory: the caches take up to {} bytes, the budget is {}; raise --memory to that, "
            "shorten the text, or store less with --kv-dtype int8 or a smaller --kept-ratio",
            least, limit);
  UnderLimit result;
  std::int64_t bytes = run.end;
  for (const std::int64_t expansion : run.expansions) {
    if (expansion > 0 && bytes + expansion + run.reserve <= limit) {
      bytes += expansion;
      ++result.groups;
    }
  }
  result.peak = std::max(run.reading, bytes);
  return result;
}

double ratio(std::int64_t a, std::int64_t b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 1;
}

Json plan_json(const RunForecast& run, const CacheTypes& types, std::size_t num_groups,
               const RunOptions& options) {
  std::int64_t expansion = 0;
  for (const std::int64_t bytes : run.expansions) {
    expansion += bytes;
  }
  Json json;
  json["kv_dtype"] = to_string(types.kv);
  json["tokens"] = run.tokens;
  json["reading_bytes"] = run.reading;
  json["end_bytes"] = run.end;
  json["original_bytes"] = run.original;
  json["kept_ratio"] = ratio(run.end, run.original);
  json["expansion_bytes"] = expansion;
  if (options.engine.memory_bytes) {
    const UnderLimit limited = apply_limit(run, *options.engine.memory_bytes);
    json["memory_bytes"] = *options.engine.memory_bytes;
    json["expanded_groups"] = limited.groups;
    json["num_groups"] = num_groups;
    json["peak_bytes"] = limited.peak;
  }
  return json;
}

}  // namespace

void print_memory_plan(const RunOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(options.model);
  const ModelConfig config = read_model_config(checkpoint);
  const KvPlan plan = plan_of(checkpoint, config);
  const CacheTypes types = cache_types(checkpoint, config, options.engine);
  const RunForecast run = forecast_run(plan, types, read_prompts(options), options.generate);
  const Json json = plan_json(run, types, plan.groups.size(), options);
  if (options.json) {
    fmt::print("{}\n", json.dump());
    return;
  }
  fmt::print(
      "KV cache of {} tokens as {}: up to {} bytes while the prompt is read, then up to {} "
      "(kept_ratio {:.3f}); keys and values rebuilt from latents would take {} more\n",
      run.tokens, to_string(types.kv), run.reading, run.end, ratio(run.end, run.original),
      json["expansion_bytes"].get<std::int64_t>());
  if (options.engine.memory_bytes) {
    fmt::print("within {} bytes: {} of {} groups rebuilt, up to {} bytes in use\n",
               *options.engine.memory_bytes, json["expanded_groups"].get<std::int64_t>(),
               plan.groups.size(), json["peak_bytes"].get<std::int64_t>());
  }
}

}  // namespace kvc
