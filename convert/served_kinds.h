// Kinds of conversion that engines other than kvrun run. A method names its kind (Method::served); the plugin's counterpart
// is python/kvconvert/kinds.py.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "convert/convert.h"
#include "convert/serving_engine.h"
#include "core/kv_plan.h"

namespace kvc {

struct ServedKind {
  // Sets prompts and exact tokens as the engine reads them. UsageError where others were given.
  void (*suit)(ServingEngine engine, const Given& given, ConvertSettings& settings);
  // UsageError if the engine does not run what these settings make. model_type: of config.json
  void (*check)(ServingEngine engine, const ConvertSettings& settings, std::string_view model_type);
  // True if vLLM runs a conversion with these settings and this plan.
  bool (*vllm_runs)(const ConvertSettings& settings, const KvPlan& plan,
                    std::string_view model_type);
  // Adds a sentence for each way to run vLLM that the plan rules out.
  void (*add_limits)(const KvPlan& plan, std::vector<std::string>& limits);
};

extern const ServedKind kServedCodes;    // coded
extern const ServedKind kServedLatents;  // pca, xkv-static, palu, commonkv
extern const ServedKind kServedFused;    // fused layers and the plain ones that they read

}  // namespace kvc
