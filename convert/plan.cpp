#include "convert/plan.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "convert/latent/latent_settings.h"
#include "convert/methods/methods.h"
#include "core/error.h"
#include "model/cache_plan.h"
#include "model/factor_specs.h"
#include "model/tensor_names.h"

namespace kvc {
namespace {

constexpr std::int64_t kDefaultContext = 8192;

// What a group of `num_tokens` holds when as much as possible is merged, or nothing.
GroupTokens extreme_tokens(const KvPlan& plan, std::int64_t num_tokens, bool merged) {
  GroupTokens tokens;
  tokens.pending =
      std::min(num_tokens, plan.compression.sink_tokens + plan.compression.window_tokens);
  (merged ? tokens.merged : tokens.unmerged) = num_tokens - tokens.pending;
  tokens.bases = merged && plan.request ? 1 : 0;
  return tokens;
}

bool merges(const KvPlan& plan) { return plan.compression.rule != MergeRule::kNone; }

// Error with the numbers and the settings that help where a conversion would take more memory than the original even
// with four times the tokens in flight.
void check_pays(const KvPlan& plan, const ModelConfig& config, const ConvertSettings& settings) {
  constexpr std::int64_t kMostTimes = 4;
  const Payback gain = estimated_payback(plan, config, settings);
  const std::int64_t expected = tokens_in_flight(config, settings);
  if (gain.tokens / kMostTimes <= expected) {
    return;
  }
  const std::string more_tokens =
      gain.tokens == Payback::kNever
          ? ""
          : fmt::format("--tokens-in-flight {} if you expect so many, ", gain.tokens);
  fail(
      "--method {}: {}, more than {} times the {} tokens that are expected; with fewer it takes "
      "more memory than it saves. Use {}{}, or --force to convert anyway",
      settings.method, to_text(gain), kMostTimes, expected, more_tokens,
      plan.coded.empty() ? "a smaller --rank, or --method coded" : "--scope head");
}

constexpr std::int64_t kBitsPerCoefficient = 3;  // of those that get any; a typical mean

// Coefficients with 16 bits in matrices that --factor-dtype auto stores in 8, typical shares.
constexpr double kWideOfPrincipal = 0, kWideOfJoint = 0.5, kWideOfCoded = 0.75;

// In the type that is usually chosen, without codes of a whole basis. Matrices: float16, or codes where `wide_share` is
// given; vectors: float32.
std::int64_t stored_bytes(const std::vector<FactorSpec>& factors, const StoredForm& form,
                          std::optional<double> wide_share = {}) {
  constexpr std::int64_t kFloatBytes = 4, kHalfBytes = 2;
  std::int64_t bytes = 0;
  for (const FactorSpec& factor : factors) {
    if (factor.use == FactorUse::kCode || !is_stored(factor.use, form)) {
      continue;
    }
    const std::int64_t size = c10::multiply_integers(factor.shape);
    if (factor.axis == CoefficientAxis::kNone || !wide_share) {
      bytes += size * (factor.shape.size() > 1 ? kHalfBytes : kFloatBytes);
      continue;
    }
    const std::int64_t coefficients = factor.shape[factor.axis == CoefficientAxis::kRows ? 0 : 1];
    bytes +=
        std::llround((1 + *wide_share) * static_cast<double>(size)) + kFloatBytes * coefficients;
  }
  return bytes;
}

// Bytes that projections of a layer take in the checkpoint, where they are tensors of their own.
std::int64_t projection_bytes(const ModelConfig& config, int layer) {
  std::int64_t values = 0;
  for (const ProjectionRows& rows : {key_rows(config, layer), value_rows(config, layer)}) {
    values += rows.is_whole() ? rows.num_rows * config.hidden_size : 0;
  }
  return values * bytes_per_element(cache_dtype(config));
}

}  // namespace

KvPlan make_plan(const ModelConfig& config, const ConvertSettings& settings, bool force,
                 const std::vector<double>* fisher_scores) {
  const Method& method = find_method(settings.method);
  if (const auto reason = refusal(method, *config.arch)) {
    fail("--method {}: {}", settings.method, *reason);
  }
  KvPlan plan = method.make_plan({config, settings, force, fisher_scores});
  plan.check();
  if (!force) {
    check_pays(plan, config, settings);
  }
  return plan;
}

KvPlan base_plan(const ModelConfig& config, const ConvertSettings& settings) {
  KvPlan plan = plain_plan(config);
  plan.method = settings.method;
  plan.key_norm = config.arch->qk_norm != QkNorm::kNone;
  return plan;
}

KeptRange kept_range(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype) {
  const auto ratio = [&](bool merged) {
    const std::vector<GroupTokens> groups(plan.groups.size(),
                                          extreme_tokens(plan, num_tokens, merged));
    std::vector<PairTokens> pairs;
    if (plan.paired) {
      pairs.assign(plan.paired->first_layers.size(), merged_pair(plan, num_tokens, !merged));
    }
    return static_cast<double>(plan_bytes(plan, num_tokens, groups, dtype, 1, pairs)) /
           static_cast<double>(original_bytes(plan, num_tokens, dtype));
  };
  return {ratio(merges(plan)), ratio(false)};
}

KeptRange group_kept_range(const KvPlan& plan, int group, std::int64_t num_tokens, KvDtype dtype) {
  const LatentGroup& layers = plan.groups.at(static_cast<std::size_t>(group));
  const auto plain =
      static_cast<double>(layers.num_layers * plain_layer_bytes(plan, num_tokens, dtype));
  const auto ratio = [&](bool merged) {
    const GroupTokens tokens = extreme_tokens(plan, num_tokens, merged);
    return static_cast<double>(group_bytes(plan, group, tokens, dtype)) / plain;
  };
  return {ratio(merges(plan)), ratio(false)};
}

double unmerged_share(double target, const KeptRange& range) {
  if (range.highest <= range.lowest) {
    return target >= range.highest ? 1 : 0;
  }
  return std::clamp((target - range.lowest) / (range.highest - range.lowest), 0.0, 1.0);
}

TokenBytes token_bytes(const KvPlan& plan, int group, KvDtype dtype) {
  const LatentGroup& layers = plan.groups.at(static_cast<std::size_t>(group));
  TokenBytes bytes;
  bytes.plain = layers.num_layers * plain_layer_bytes(plan, 1, dtype);
  bytes.unmerged = group_bytes(plan, group, {.unmerged = 1}, dtype);
  bytes.merged = merges(plan) ? group_bytes(plan, group, {.merged = 1}, dtype) : bytes.unmerged;
  return bytes;
}

PairTokens merged_pair(const KvPlan& plan, std::int64_t num_tokens, bool retains) {
  const std::int64_t retained = retains ? plan.paired->most_retained(num_tokens) : 0;
  return {.merged = num_tokens, .retained_keys = retained, .retained_values = retained};
}

KvDtype planned_dtype(const ModelConfig& config, const ConvertSettings& settings) {
  return settings.kv_dtype.empty() ? cache_dtype(config) : parse_kv_dtype(settings.kv_dtype);
}

std::int64_t plan_context(const ModelConfig& config, const ConvertSettings& settings) {
  return settings.context > 0 ? settings.context
                              : std::min(config.max_position_embeddings, kDefaultContext);
}

std::int64_t tokens_in_flight(const ModelConfig& config, const ConvertSettings& settings) {
  return settings.tokens_in_flight > 0 ? settings.tokens_in_flight
                                       : std::max(plan_context(config, settings), kDefaultContext);
}

double planned_type_scale(const KvPlan& plan, const ModelConfig& config,
                          const ConvertSettings& settings) {
  return static_cast<double>(original_bytes(plan, 1, planned_dtype(config, settings))) /
         static_cast<double>(original_bytes(plan, 1, cache_dtype(config)));
}

double planned_kept_ratio(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype) {
  const KeptRange range = kept_range(plan, num_tokens, dtype);
  return range.lowest +
         unmerged_share(plan.compression.target_kept_ratio, range) * (range.highest - range.lowest);
}

std::string unmet_target_note(const KvPlan& plan, const ModelConfig& config,
                              const ConvertSettings& settings) {
  const double kept =
      planned_type_scale(plan, config, settings) *
      planned_kept_ratio(plan, plan_context(config, settings), planned_dtype(config, settings));
  const double target = settings.kept_ratio;
  return kept <= 1.1 * target && target <= 1.1 * kept
             ? ""
             : fmt::format(
                   "--kept-ratio {:g}: this plan keeps {:.3f}; its size follows from other "
                   "settings of --method {}",
                   target, kept, settings.method);
}

std::string late_payback_note(const Payback& gain, std::int64_t expected) {
  if (gain.tokens <= expected) {
    return "";
  }
  return gain.tokens == Payback::kNever
             ? "this plan saves no memory"
             : fmt::format(
                   "this plan saves memory only above {} cached tokens of all requests "
                   "together; {} are expected (--tokens-in-flight)",
                   gain.tokens - 1, expected);
}

Payback plan_payback(const KvPlan& plan, const ModelConfig& config, const ConvertSettings& settings,
                     std::int64_t factor_bytes) {
  const std::int64_t context = plan_context(config, settings);
  const double kept = planned_type_scale(plan, config, settings) *
                      planned_kept_ratio(plan, context, planned_dtype(config, settings));
  return payback(factor_bytes, static_cast<double>(original_bytes(plan, 1, cache_dtype(config))),
                 kept);
}

Payback estimated_payback(const KvPlan& plan, const ModelConfig& config,
                          const ConvertSettings& settings) {
  return plan_payback(plan, config, settings, estimated_factor_bytes(plan, config, settings));
}

std::int64_t estimated_block_bytes(const KvPlan& plan, int block) {
  const CodedBlock& spec = plan.coded[static_cast<std::size_t>(block)];
  const std::int64_t n = coded_channels(plan, spec);
  const std::int64_t kept = std::clamp<std::int64_t>(spec.bits() / kBitsPerCoefficient, 1, n);
  const bool codes = n <= kMostCodedBasisChannels && spec.bases == 1;
  const bool wide = n > kMostCodedBasisChannels && spec.bases == 1;
  return stored_bytes(coded_factors(plan, block, kept), {.codes = codes},
                      wide ? std::optional(kWideOfCoded) : std::nullopt) +
         (codes ? basis_code_bytes(n, kept, kept / 2) : 0);
}

std::int64_t estimated_group_bytes(const KvPlan& plan, int group, const ModelConfig& config,
                                   const ConvertSettings& settings) {
  const LatentGroup& spec = plan.groups[static_cast<std::size_t>(group)];
  const StoredForm form{.latents = needs_latents(plan, group),
                        .refitted = settings.own<LatentSettings>().refit};
  const bool joint = spec.basis == LatentBasis::kWeights && !spec.split_kv;
  return stored_bytes(group_factors(plan, group, config.hidden_size), form,
                      joint ? kWideOfJoint : kWideOfPrincipal) -
         (spec.replaces_projections() ? projection_bytes(config, spec.first_layer) : 0);
}

std::int64_t estimated_fused_bytes(const KvPlan& plan, const FusedLayer& layer,
                                   const ModelConfig& config) {
  return stored_bytes(fused_factors(plan, layer), {}) - projection_bytes(config, layer.layer);
}

std::int64_t estimated_factor_bytes(const KvPlan& plan, const ModelConfig& config,
                                    const ConvertSettings& settings) {
  std::int64_t bytes = 0;
  for (std::size_t block = 0; block < plan.coded.size(); ++block) {
    bytes += estimated_block_bytes(plan, static_cast<int>(block));
  }
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    bytes += estimated_group_bytes(plan, static_cast<int>(group), config, settings);
  }
  for (const FusedLayer& layer : plan.fused) {
    bytes += estimated_fused_bytes(plan, layer, config);
  }
  return bytes;
}

}  // namespace kvc
