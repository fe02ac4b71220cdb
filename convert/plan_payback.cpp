#include "convert/plan_payback.h"

#include "convert/factor_bytes.h"
#include "convert/latent/kept_range.h"
#include "core/error.h"
#include "core/kv_plan_bytes.h"
#include "model/cache_plan.h"

namespace kvc {

Payback plan_payback(const KvPlan& plan, const ModelConfig& config, const ConvertSettings& settings,
                     std::int64_t factor_bytes) {
  const std::int64_t context = plan_context(config, settings);
  const double kept = planned_type_scale(plan, config, settings) *
                      planned_kept_ratio(plan, context, planned_dtype(config, settings));
  return payback(factor_bytes, static_cast<double>(original_bytes(plan, 1, cache_dtype(config))),
                 kept);
}

Payback estimated_payback(const KvPlan& plan, const ModelConfig& config,
                          const ConvertSettings& settings) {
  return plan_payback(plan, config, settings, estimated_factor_bytes(plan, config, settings));
}

void check_pays(const KvPlan& plan, const ModelConfig& config, const ConvertSettings& settings) {
  constexpr std::int64_t kMostTimes = 4;
  const Payback gain = estimated_payback(plan, config, settings);
  const std::int64_t expected = tokens_in_flight(config, settings);
  if (gain.tokens / kMostTimes <= expected) {
    return;
  }
  const std::string more_tokens =
      gain.tokens == Payback::kNever
          ? ""
          : fmt::format("--tokens-in-flight {} if there are so many, ", gain.tokens);
  fail(
      "--method {}: {}, more than {} times the {} tokens that are expected; below that it takes "
      "more memory than it saves. Use {}{}, or --force to convert anyway",
      settings.method, to_text(gain), kMostTimes, expected, more_tokens,
      plan.coded.empty() ? "a smaller --rank, or --method coded" : "--scope head");
}

}  // namespace kvc
