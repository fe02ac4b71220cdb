#include "convert/serving_engine.h"

#include <algorithm>
#include <array>

#include "convert/latent/latent_settings.h"
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

// As in python/kvconvert/latents.py.
constexpr std::array<std::string_view, 4> kLatentMethods = {"pca", "xkv-static", "palu",
                                                            "commonkv"};

template <std::size_t count>
bool is_among(const std::array<std::string_view, count>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
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

bool serves_family(ServingEngine engine, std::string_view model_type) {
  return engine != ServingEngine::kVllm || !is_among(kNotInVllm, model_type);
}

bool serves_latents(ServingEngine engine, std::string_view method) {
  return engine == ServingEngine::kTransformers && is_among(kLatentMethods, method);
}

void check_served_latents(ServingEngine engine, const ConvertSettings& settings,
                          std::string_view model_type) {
  if (!serves_latents(engine, settings.method)) {
    return;
  }
  const bool of_weights = settings.method == "palu" || settings.method == "commonkv";
  if (settings.method == "commonkv") {
    const MergeRule rule = settings.own<LatentSettings>().merge;
    KVC_CHECK_USAGE(
        rule == MergeRule::kNone,
        "--for transformers: runs commonkv without merged tokens, found --merge {}; pass "
        "--merge none, or leave --for out",
        to_string(rule));
  }
  KVC_CHECK_USAGE(
      !settings.kv_dtype.starts_with("int"),
      "--for transformers: keeps latents in the model's dtype, found --kv-dtype {}; leave "
      "one of them out",
      settings.kv_dtype);
  KVC_CHECK_USAGE(
      !of_weights || model_type != "phi3",
      "--for transformers: has one matrix for the queries, keys and values of {}, so it "
      "does not run factors of {}; pass --method pca, or leave --for out",
      model_type, settings.method);
  KVC_CHECK_USAGE(model_type != "deepseek_v2",
                  "--for transformers: does not run latents of {}'s own latents; leave --for out",
                  model_type);
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
