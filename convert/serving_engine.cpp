#include "convert/serving_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "convert/methods/methods.h"
#include "convert/served_kinds.h"
#include "core/enum_names.h"
#include "core/error.h"

namespace kvc {
namespace {

constexpr EnumName<ServingEngine> kEngines[] = {{ServingEngine::kKvrun, "kvrun"},
                                                {ServingEngine::kTransformers, "transformers"},
                                                {ServingEngine::kVllm, "vllm"}};

// As in python/kvconvert/vllm/families.py, which has the reasons.
constexpr std::array<std::string_view, 7> kNotInVllm = {
    "ministral", "olmo2", "olmo3", "smollm3", "starcoder2", "seed_oss", "gemma3"};

bool serves_family(ServingEngine engine, std::string_view model_type) {
  return engine != ServingEngine::kVllm ||
         std::find(kNotInVllm.begin(), kNotInVllm.end(), model_type) == kNotInVllm.end();
}

}  // namespace

std::string to_string(ServingEngine engine) { return name_of(kEngines, engine); }

ServingEngine parse_serving_engine(const std::string& name) {
  try {
    return value_of(kEngines, name, "engine");
  } catch (const Error& error) {
    fail_usage("--for: {}", error.what());
  }
}

bool prescribes_tokens(ServingEngine engine) { return engine == ServingEngine::kVllm; }

void suit_engine(ServingEngine engine, const Given& given, ConvertSettings& settings) {
  if (engine == ServingEngine::kKvrun) {
    return;
  }
  if (!given("--method")) {
    settings.method = "coded";
  }
  const ServedKind* kind = find_method(settings.method).served;
  KVC_CHECK_USAGE(kind != nullptr,
                  "--for {}: requires --method {}, found {}; leave --method out, or leave --for "
                  "out and pass --export folded",
                  to_string(engine),
                  method_names([](const Method& method) { return method.served != nullptr; }),
                  settings.method);
  kind->suit(engine, given, settings);
}

void check_served(ServingEngine engine, const ConvertSettings& settings,
                  std::string_view model_type) {
  KVC_CHECK_USAGE(serves_family(engine, model_type),
                  "--for vllm: vLLM does not serve conversions of {} (docs/serving.md); use --for "
                  "transformers, or leave --for out and pass --method commonkv --export folded",
                  model_type);
  if (engine != ServingEngine::kKvrun) {
    find_method(settings.method).served->check(engine, settings, model_type);
  }
}

bool vllm_serves(const ConvertSettings& settings, const KvPlan& plan, std::string_view model_type) {
  const ServedKind* kind = find_method(plan.method).served;
  return kind != nullptr && serves_family(ServingEngine::kVllm, model_type) &&
         kind->vllm_runs(settings, plan, model_type);
}

std::vector<std::string> serving_limits(ServingEngine engine, const KvPlan& plan) {
  std::vector<std::string> limits;
  if (engine == ServingEngine::kVllm) {
    find_method(plan.method).served->add_limits(plan, limits);
  }
  return limits;
}

}  // namespace kvc
