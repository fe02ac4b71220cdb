#include "validate/read_cache.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "core/kv_plan_bytes.h"
#include "model/cache_plan.h"
#include "runtime/memory/memory_forecast.h"
#include "validate/model_run.h"

namespace kvc {

std::optional<double> read_ratio(const Engine& engine, const KvPlan& original, std::int64_t length,
                                 std::int64_t block_tokens) {
  const KvPlan& plan = engine.plan();
  if (plan.num_layers_from(KvSource::kPlain) == plan.num_layers() && engine.policy().is_full() &&
      !is_integer(engine.kv_dtype())) {
    return {};
  }
  const std::int64_t page_tokens = engine.pool().page_tokens();
  const std::int64_t read = length - 2;  // before the token whose logits predict the last one
  const std::int64_t begin = std::min(first_scored(length, block_tokens), read);
  const std::int64_t prompt =
      block_tokens > 0 ? begin + (read - begin) / block_tokens * block_tokens : begin;
  CacheForecast cache(plan, engine.kv_dtype(), page_tokens, MergeSpread::kEven, engine.policy());
  cache.read(prompt);
  cache.extend(read - prompt);
  // Wider numbers than the checkpoint's are a choice of the run, and no row is too short for it.
  const KvDtype dtype =
      is_integer(engine.kv_dtype()) ? cache_dtype(engine.config()) : engine.kv_dtype();
  return static_cast<double>(cache.bytes()) /
         static_cast<double>(original_bytes(original, round_up(read, page_tokens), dtype));
}

}  // namespace kvc
