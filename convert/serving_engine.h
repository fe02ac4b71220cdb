// What an engine other than kvrun requires of a conversion.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "convert/convert.h"
#include "core/kv_plan.h"

namespace kvc {

// Engine of --for. vLLM and transformers read prompts through codes, and keep no sinks beside them, and windows of whole tiles.
// Beside latents vLLM keeps neither, and a generated token becomes a latent at once. Plain layers below fused ones are exact.
enum class ServingEngine { kKvrun, kTransformers, kVllm };

std::string to_string(ServingEngine);
ServingEngine parse_serving_engine(const std::string&);  // UsageError lists the known ones

// Does the engine run the latents of this method?
bool serves_latents(ServingEngine engine, std::string_view method);
// Does the engine run the fused layers of this method?
bool serves_fused(ServingEngine engine, std::string_view method);
// UsageError if the engine does not run what these settings of such a method make. model_type: of config.json
void check_served_method(ServingEngine engine, const ConvertSettings& settings,
                         std::string_view model_type);
// Can the engine serve codes and latents of this family? model_type: of config.json
bool serves_family(ServingEngine engine, std::string_view model_type);
// UsageError if the engine cannot serve this family
void check_served_family(ServingEngine engine, std::string_view model_type);
// Can vLLM run a conversion that has this plan?
bool vllm_serves(const KvPlan& plan, std::string_view model_type);
// A sentence for each way to run the engine that the plan rules out.
std::vector<std::string> serving_limits(ServingEngine engine, const KvPlan& plan);

}  // namespace kvc
