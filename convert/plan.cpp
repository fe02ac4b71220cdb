#include "convert/method_support.h"
#include "convert/plan_payback.h"
#include "core/error.h"

namespace kvc {

KvPlan make_plan(const ModelConfig& config, const ConvertSettings& settings, bool force,
                 const std::vector<double>* fisher_scores) {
  const Method& method = find_method(settings.method);
  if (const auto reason = refusal(method, *config.arch)) {
    fail("--method {}: {}", settings.method, *reason);
  }
  KvPlan plan = method.make_plan(config, settings, force, fisher_scores);
  plan.check();
  if (!force) {
    check_pays(plan, config, settings);
  }
  return plan;
}

}  // namespace kvc
