#include "convert/serving_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "convert/fusion/fusion_plan.h"
#include "convert/latent/latent_settings.h"
#include "core/enum_names.h"
#include "core/error.h"
#include "core/kv_plan_bytes.h"

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

constexpr std::array<std::string_view, 4> kFusedMethods = {"fusedkv", "fusedkv-lite", "yoco",
                                                           "cla"};

// Are queries, keys and values of one matrix? As in python/kvconvert/plans.py.
bool has_one_projection(std::string_view model_type) { return model_type == "phi3"; }

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

bool vllm_serves(const KvPlan& plan, std::string_view model_type) {
  const CompressionSettings& policy = plan.compression;
  const bool merges = policy.rule != MergeRule::kNone && has_basis(plan, LatentBasis::kWeights);
  const bool latents = serves_latents(ServingEngine::kVllm, plan.method) && !merges &&
                       policy.sink_tokens == 0 && policy.window_tokens == 0 &&
                       policy.block_tokens == 1;
  const bool codes = codes_first_token(plan) && policy.window_tokens % kQuantisedTokens == 0;
  const bool fused =
      serves_fused(ServingEngine::kVllm, plan.method) && !has_one_projection(model_type) &&
      std::none_of(plan.fused.begin(), plan.fused.end(),
                   [](const auto& layer) { return layer.form == FusionForm::kFull; });
  return serves_family(ServingEngine::kVllm, model_type) && (latents || codes || fused);
}

bool serves_latents(ServingEngine engine, std::string_view method) {
  return engine != ServingEngine::kKvrun && is_among(kLatentMethods, method);
}

bool serves_fused(ServingEngine engine, std::string_view method) {
  return engine != ServingEngine::kKvrun && is_among(kFusedMethods, method);
}

void check_served_method(ServingEngine engine, const ConvertSettings& settings,
                         std::string_view model_type) {
  const bool fused = serves_fused(engine, settings.method);
  if (!fused && !serves_latents(engine, settings.method)) {
    return;
  }
  const std::string name = to_string(engine);
  if (fused) {
    KVC_CHECK_USAGE(settings.own<FusionSettings>().form != FusionForm::kFull,
                    "--for {}: combines keys after RoPE, found --fusion matrices; leave one of "
                    "them out",
                    name);
  }
  if (settings.method == "commonkv") {
    const MergeRule rule = settings.own<LatentSettings>().merge;
    KVC_CHECK_USAGE(rule == MergeRule::kNone,
                    "--for {}: runs commonkv without merged tokens, found --merge {}; pass "
                    "--merge none, or leave --for out",
                    name, to_string(rule));
  }
  KVC_CHECK_USAGE(!settings.kv_dtype.starts_with("int"),
                  "--for {}: keeps the cache in the model's dtype, found --kv-dtype {}; leave "
                  "one of them out",
                  name, settings.kv_dtype);
  const bool changes_projections =
      fused || settings.method == "palu" || settings.method == "commonkv";
  KVC_CHECK_USAGE(!changes_projections || !has_one_projection(model_type),
                  "--for {}: has one matrix for the queries, keys and values of {}, so it "
                  "does not run {}; pass --method pca, or leave --for out",
                  name, model_type, settings.method);
  KVC_CHECK_USAGE(model_type != "deepseek_v2",
                  "--for {}: does not run latents of {}'s own latents; leave --for out", name,
                  model_type);
}

void check_served_family(ServingEngine engine, std::string_view model_type) {
  KVC_CHECK_USAGE(serves_family(engine, model_type),
                  "--for vllm: vLLM does not serve conversions of {} (docs/serving.md); use --for "
                  "transformers, or leave --for out and pass --method commonkv --export folded",
                  model_type);
}

std::vector<std::string> serving_limits(ServingEngine engine, const KvPlan& plan) {
  if (engine != ServingEngine::kVllm) {
    return {};
  }
  const auto any = [](const auto& all, const auto& holds) {
    return std::any_of(all.begin(), all.end(), holds);
  };
  const bool joint_codes = plan.num_kv_heads > 1 &&
                           any(plan.coded, [](const CodedBlock& block) { return block.head < 0; });
  const bool groups =
      any(plan.coded, [](const CodedBlock& block) { return block.num_layers > 1; }) ||
      any(plan.groups, [](const LatentGroup& group) {
        return group.num_layers > 1 && group.basis == LatentBasis::kCalibrated;
      });
  std::vector<std::string> limits;
  if (joint_codes) {
    limits.push_back(
        "vLLM will refuse --tensor-parallel-size above 1: all KV heads are coded together; "
        "--scope head allows it");
  }
  if (!plan.groups.empty()) {
    limits.push_back(
        "vLLM will refuse --tensor-parallel-size above 1: a latent is of all KV heads; --method "
        "coded --scope head allows it");
  }
  if (any(plan.fused, [](const FusedLayer& layer) {
        return !layer.key_heads.empty() || !layer.value_heads.empty();
      })) {
    limits.push_back(
        "vLLM will refuse --tensor-parallel-size above 1: heads read other heads of the layers "
        "below; --head-map same allows it");
  }
  if (!plan.fused.empty()) {
    limits.push_back(
        "vLLM will refuse --pipeline-parallel-size that parts fused layers from those that they "
        "read; --method coded allows any");
  }
  if (groups) {
    limits.push_back(fmt::format(
        "vLLM will refuse --pipeline-parallel-size that splits a group of layers; {} allows any",
        plan.groups.empty() ? "--scope layer or head" : "--group 1"));
  }
  return limits;
}

}  // namespace kvc
