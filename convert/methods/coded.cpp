// Coded caches (ours): principal coefficients of keys and values under a sensitivity metric, each with a
// fixed number of bits, shared out over the whole model.
#include <algorithm>

#include "convert/coded/block_layout.h"
#include "convert/coded/coded_conversion.h"
#include "convert/coded/coded_plan.h"
#include "convert/coded/coded_plan_table.h"
#include "convert/methods/methods.h"
#include "core/error.h"

namespace kvc {
namespace {

void apply_coded_preset(ConvertSettings&) {
  fail_usage("--preset paper: coded has no paper; leave --preset out");
}

void fix_coded(ConvertSettings& settings) {
  settings.merge = MergeRule::kNone;
  settings.prefill = PrefillMode::kExact;
  settings.rank_allocation = RankAllocation::kUniform;
  settings.factor = Factor::kPlain;
  settings.cache_metric = settings.cache_metric.value_or(CacheMetric::kFisher);
}

StatisticsNeeds needs(const ModelConfig& config, const ConvertSettings& settings) {
  const LayerScopes scopes = choose_scopes(config, settings);
  StatisticsNeeds needs;
  needs.joint_layers = statistics_layers(settings, scopes);
  for (const CodedBlock& block : block_layout(config, settings, scopes)) {
    needs.least_tokens = std::max(needs.least_tokens, least_calibration_tokens(block, config));
  }
  needs.gradient_metric = needs_gradient(*settings.cache_metric);
  needs.attention_metric = needs_attention(*settings.cache_metric);
  return needs;
}

KvPlan plan_coded(const ModelConfig& config, const ConvertSettings& settings, bool force,
                  const std::vector<double>*) {
  return make_coded_plan(config, settings, force);
}

// Exact tokens are taken from the rate of all others: in short texts that costs more than they bring (docs/quality.md).
ExactTokens exact_tokens(std::int64_t context) {
  constexpr std::int64_t kLong = 2048;
  return context < kLong ? ExactTokens{.sink = 0, .window = 0, .block = 64}
                         : ExactTokens{.sink = 4, .window = 32, .block = 64};
}

std::string plan_text(const ModelConfig& config, const ConvertSettings& settings, bool force,
                      bool json) {
  const CodedPlanTable table = coded_plan_table(config, settings, force);
  return json ? dump_json(to_json(table)) : to_text(table);
}

}  // namespace

const Method kCoded = {
    .name = "coded",
    .apply_paper_preset = apply_coded_preset,
    .fix_settings = fix_coded,
    .make_plan = plan_coded,
    .convert = convert_coded_blocks,
    .needs = needs,
    .plan_text = plan_text,
    .exact_tokens = exact_tokens,
    .least_kept_ratio = least_coded_kept_ratio,
    .calibration = {.thorough_rows = 40, .knee_rows = 10, .row_len = 1024, .with_own_text = true}};

}  // namespace kvc
