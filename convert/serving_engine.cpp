#include "convert/serving_engine.h"

#include <algorithm>
#include <array>

#include "core/enum_names.h"
#include "core/error.h"

namespace kvc {
namespace {

constexpr EnumName<ServingEngine> kEngines[] = {{ServingEngine::kKvrun, "kvrun"},
                                                {ServingEngine::kTransformers, "transformers"},
                                                {ServingEngine::kVllm, "vllm"}};

// As in python/kvconvert/vllm/families.py, which has the reasons.
constexpr std::array<std::string_view, 5> kNotInVllm = {"ministral", "olmo2", "smollm3",
                                                        "starcoder2", "gemma3"};

}  // namespace

std::string to_string(ServingEngine engine) { return name_of(kEngines, engine); }

ServingEngine parse_serving_engine(const std::string& name) {
  try {
    return value_of(kEngines, name, "engine");
  } catch (const Error& error) {
    fail_usage("--for: {}", error.what());
  }
}

bool serves_family(ServingEngine engine, std::string_view model_type) {
  return engine != ServingEngine::kVllm ||
         std::find(kNotInVllm.begin(), kNotInVllm.end(), model_type) == kNotInVllm.end();
}

void check_served_family(ServingEngine engine, std::string_view model_type) {
  KVC_CHECK_USAGE(serves_family(engine, model_type),
                  "--for vllm: vLLM does not serve {} from codes (docs/serving.md); use --for "
                  "transformers, or leave --for out and pass --method commonkv --export folded",
                  model_type);
}

std::vector<std::string> serving_limits(ServingEngine engine, const KvPlan& plan) {
  const bool joint =
      plan.num_kv_heads > 1 && std::any_of(plan.coded.begin(), plan.coded.end(),
                                           [](const CodedBlock& block) { return block.head < 0; });
  const bool groups = std::any_of(plan.coded.begin(), plan.coded.end(),
                                  [](const CodedBlock& block) { return block.num_layers > 1; });
  std::vector<std::string> limits;
  if (engine == ServingEngine::kVllm && joint) {
    limits.push_back(
        "vLLM will refuse --tensor-parallel-size above 1: all KV heads are coded together; "
        "--scope head allows it");
  }
  if (engine == ServingEngine::kVllm && groups) {
    limits.push_back(
        "vLLM will refuse --pipeline-parallel-size that splits a group of layers; --scope layer "
        "or head allows any");
  }
  return limits;
}

}  // namespace kvc
