#include "convert/served_kinds.h"

#include <algorithm>

#include "convert/coded/coded_settings.h"
#include "convert/fusion/fusion_plan.h"
#include "convert/latent/latent_settings.h"
#include "convert/methods/methods.h"
#include "core/error.h"
#include "core/kv_plan_bytes.h"
#include "model/arch.h"

namespace kvc {
namespace {

// True if one matrix makes queries, keys and values, as in python/kvconvert/plans.py.
bool has_one_projection(std::string_view model_type) {
  return find_arch(model_type, "model_type").fused_projections;
}

bool stores_integers(const ConvertSettings& settings) {
  return settings.kv_dtype.starts_with("int");
}

template <typename Parts, typename Holds>
bool any_of(const Parts& parts, const Holds& holds) {
  return std::any_of(parts.begin(), parts.end(), holds);
}

// UsageError if the flag was given with another number of tokens than the engine serves.
void check_tokens(const Given& given, ServingEngine engine, const char* flag, std::int64_t tokens,
                  std::int64_t served) {
  KVC_CHECK_USAGE(!given(flag) || tokens == served,
                  "--for {}: requires {} {}, found {} {}; leave {} out", to_string(engine), flag,
                  served, flag, tokens, flag);
}

// For a kind that replaces the projections of keys and values.
void check_projections(ServingEngine engine, const ConvertSettings& settings,
                       std::string_view model_type) {
  KVC_CHECK_USAGE(!has_one_projection(model_type),
                  "--for {}: has one matrix for the queries, keys and values of {}, so it "
                  "does not run {}; pass --method pca, or leave --for out",
                  to_string(engine), model_type, settings.method);
}

// Prompts are read through codes, without sinks beside them.
void suit_codes(ServingEngine engine, const Given& given, ConvertSettings& settings) {
  KVC_CHECK_USAGE(!given("--prefill") || settings.prefill == PrefillMode::kCoded,
                  "--for {}: reads prompts through codes, found --prefill {}; leave --prefill out",
                  to_string(engine), to_string(settings.prefill));
  check_tokens(given, engine, "--sink", settings.sink_tokens, 0);
  KVC_CHECK_USAGE(
      !given("--window") || settings.window_tokens % kQuantisedTokens == 0,
      "--for {}: keeps whole tiles of {} tokens exact, found --window {}; pass --window "
      "{}, or leave it out",
      to_string(engine), kQuantisedTokens, settings.window_tokens,
      std::max(kQuantisedTokens, settings.window_tokens / kQuantisedTokens * kQuantisedTokens));
  settings.prefill = PrefillMode::kCoded;
  if (!prescribes_tokens(engine)) {
    return;
  }
  // vLLM reserves exact tokens for as many sequences as it may run, so they are the user's choice.
  settings.sink_tokens = 0;
  settings.window_tokens = given("--window") ? settings.window_tokens : 0;
  if (!given("--head-bits")) {
    settings.own<CodedSettings>().head_bits = HeadBits::kEqual;
  }
}

void check_codes(ServingEngine, const ConvertSettings&, std::string_view) {}

bool vllm_runs_codes(const ConvertSettings&, const KvPlan& plan, std::string_view) {
  return codes_first_token(plan) && plan.compression.window_tokens % kQuantisedTokens == 0;
}

void add_code_limits(const KvPlan& plan, std::vector<std::string>& limits) {
  if (plan.num_kv_heads > 1 &&
      any_of(plan.coded, [](const CodedBlock& block) { return block.head < 0; })) {
    limits.emplace_back(
        "vLLM will refuse --tensor-parallel-size above 1: all KV heads are coded together; "
        "--scope head allows it");
  }
  if (any_of(plan.coded, [](const CodedBlock& block) { return block.num_layers > 1; })) {
    limits.emplace_back(
        "vLLM will refuse --pipeline-parallel-size that splits a group of layers; --scope layer "
        "or head allows any");
  }
}

// In vLLM every token is a latent as soon as it was read.
void suit_latents(ServingEngine engine, const Given& given, ConvertSettings& settings) {
  if (!prescribes_tokens(engine)) {
    return;
  }
  check_tokens(given, engine, "--sink", settings.sink_tokens, 0);
  check_tokens(given, engine, "--window", settings.window_tokens, 0);
  check_tokens(given, engine, "--block", settings.block_tokens, 1);
  settings.sink_tokens = settings.window_tokens = 0;
  settings.block_tokens = 1;
}

void check_latents(ServingEngine engine, const ConvertSettings& settings,
                   std::string_view model_type) {
  KVC_CHECK_USAGE(!stores_integers(settings),
                  "--for {}: keeps the cache in the model's dtype, found --kv-dtype {}; leave "
                  "one of them out",
                  to_string(engine), settings.kv_dtype);
  if (takes(find_method(settings.method), latent_options)) {  // factors of the projections
    const MergeRule rule = settings.own<LatentSettings>().merge;
    KVC_CHECK_USAGE(rule == MergeRule::kNone,
                    "--for {}: runs {} without merged tokens, found --merge {}; pass "
                    "--merge none, or leave --for out",
                    to_string(engine), settings.method, to_string(rule));
    check_projections(engine, settings, model_type);
  }
  KVC_CHECK_USAGE(!find_arch(model_type, "model_type").latent_attention,
                  "--for {}: does not run latents of {}'s own latents; leave --for out",
                  to_string(engine), model_type);
}

bool vllm_runs_latents(const ConvertSettings& settings, const KvPlan& plan,
                       std::string_view model_type) {
  const CompressionSettings& tokens = plan.compression;
  const bool of_projections = has_basis(plan, LatentBasis::kWeights);
  const bool runs_factors = tokens.rule == MergeRule::kNone && !has_one_projection(model_type);
  return (runs_factors || !of_projections) && !plan.own_widths.has_value() &&
         !stores_integers(settings) && tokens.exact_tokens() == 0 && tokens.block_tokens == 1;
}

void add_latent_limits(const KvPlan& plan, std::vector<std::string>& limits) {
  limits.emplace_back(
      "vLLM will refuse --tensor-parallel-size above 1: a latent is of all KV heads; --method "
      "coded --scope head allows it");
  if (any_of(plan.groups, [](const LatentGroup& group) {
        return group.num_layers > 1 && group.basis == LatentBasis::kCalibrated;
      })) {
    limits.emplace_back(
        "vLLM will refuse --pipeline-parallel-size that splits a group of layers; --group 1 "
        "allows any");
  }
}

// Plain layers below are exact, whatever the settings.
void suit_fused(ServingEngine, const Given&, ConvertSettings&) {}

void check_fused(ServingEngine engine, const ConvertSettings& settings,
                 std::string_view model_type) {
  KVC_CHECK_USAGE(settings.own<FusionSettings>().form != FusionForm::kFull,
                  "--for {}: combines keys after RoPE, found --fusion matrices; leave one of "
                  "them out",
                  to_string(engine));
  check_projections(engine, settings, model_type);
}

bool vllm_runs_fused(const ConvertSettings&, const KvPlan& plan, std::string_view model_type) {
  return !has_one_projection(model_type) && !any_of(plan.fused, [](const FusedLayer& layer) {
    return layer.form == FusionForm::kFull;
  });
}

void add_fused_limits(const KvPlan& plan, std::vector<std::string>& limits) {
  if (any_of(plan.fused, [](const FusedLayer& layer) {
        return !layer.key_heads.empty() || !layer.value_heads.empty();
      })) {
    limits.emplace_back(
        "vLLM will refuse --tensor-parallel-size above 1: heads read other heads of the layers "
        "below; --head-map same allows it");
  }
  limits.emplace_back(
      "vLLM will refuse --pipeline-parallel-size that parts fused layers from those that they "
      "read; --method coded allows any");
}

}  // namespace

const ServedKind kServedCodes{suit_codes, check_codes, vllm_runs_codes, add_code_limits};
const ServedKind kServedLatents{suit_latents, check_latents, vllm_runs_latents, add_latent_limits};
const ServedKind kServedFused{suit_fused, check_fused, vllm_runs_fused, add_fused_limits};

}  // namespace kvc
