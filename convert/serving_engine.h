// Engines that conversions are for (--for), and what each requires of a conversion.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/convert.h"
#include "core/kv_plan.h"

namespace kvc {

// What transformers and vLLM require is a matter of the kind of conversion (convert/served_kinds.h).
enum class ServingEngine { kKvrun, kTransformers, kVllm };

std::string to_string(ServingEngine);
ServingEngine parse_serving_engine(const std::string&);  // UsageError lists the known ones

// Whether an option such as "--sink" was given.
using Given = std::function<bool(const char* flag)>;

// True if the engine fixes how many tokens stay exact, whatever the context.
bool prescribes_tokens(ServingEngine engine);
// Sets what the engine requires of a method's settings. Without --method the method becomes coded. UsageError where other
// settings were given.
void suit_engine(ServingEngine engine, const Given& given, ConvertSettings& settings);
// UsageError if the engine does not run what these settings make, or not in this family. model_type: of config.json
void check_served(ServingEngine engine, const ConvertSettings& settings,
                  std::string_view model_type);
// True if vLLM can run a conversion with these settings and this plan.
bool vllm_serves(const ConvertSettings& settings, const KvPlan& plan, std::string_view model_type);
// A sentence for each way to run the engine that the plan rules out.
std::vector<std::string> serving_limits(ServingEngine engine, const KvPlan& plan);

}  // namespace kvc
