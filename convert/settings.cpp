#include <cmath>

#include "convert/convert.h"
#include "convert/methods/methods.h"
#include "core/enum_names.h"
#include "core/error.h"

namespace kvc {
namespace {

constexpr EnumName<Factor> kFactors[] = {
    {Factor::kPlain, "plain"}, {Factor::kWhitened, "whitened"}, {Factor::kJoint, "joint"}};
constexpr EnumName<RankAllocation> kRankAllocations[] = {{RankAllocation::kUniform, "uniform"},
                                                         {RankAllocation::kFisher, "fisher"},
                                                         {RankAllocation::kEnergy, "energy"}};
constexpr EnumName<UnmergedChoice> kUnmergedChoices[] = {{UnmergedChoice::kAuto, "auto"},
                                                         {UnmergedChoice::kPlain, "plain"},
                                                         {UnmergedChoice::kLatent, "latent"}};
constexpr EnumName<Gauge> kGauges[] = {{Gauge::kSvd, "svd"}, {Gauge::kPivot, "pivot"}};

void check_tokens(const char* flag, std::int64_t tokens, std::int64_t least) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // sums and bytes of these fit in 64 bits
  KVC_CHECK_USAGE(tokens >= least && tokens <= kMost, "{} {}: expected {} to {} tokens", flag,
                  tokens, least, kMost);
}

void check_ranges(const ConvertSettings& settings) {
  const auto is_share = [](double x) { return std::isfinite(x) && x > 0 && x <= 1; };
  KVC_CHECK_USAGE(is_share(settings.rank), "--rank {}: expected a fraction above 0 and at most 1",
                  settings.rank);
  KVC_CHECK_USAGE(is_share(settings.kept_ratio),
                  "--kept-ratio {}: expected a fraction above 0 and at most 1",
                  settings.kept_ratio);
  KVC_CHECK_USAGE(settings.layers_per_group >= 1, "--group {}: expected at least 1 layer",
                  settings.layers_per_group);
  KVC_CHECK_USAGE(settings.rank_multiple >= 0,
                  "--rank-multiple {}: expected 0 (automatic) or a positive number",
                  settings.rank_multiple);
  check_tokens("--sink", settings.sink_tokens, 0);
  check_tokens("--window", settings.window_tokens, 0);
  check_tokens("--block", settings.block_tokens, 1);
  check_tokens("--context", settings.context, 0);                    // 0: automatic
  check_tokens("--tokens-in-flight", settings.tokens_in_flight, 0);  // likewise
  KVC_CHECK_USAGE(settings.heads_per_group >= 0,
                  "--head-group {}: expected 0 (all KV heads) or a positive number",
                  settings.heads_per_group);
}

// Of principal directions.
void check_principal(const ConvertSettings& settings) {
  KVC_CHECK_USAGE(std::isfinite(settings.value_ratio) && settings.value_ratio > 0,
                  "--value-ratio {}: expected a positive number", settings.value_ratio);
  KVC_CHECK_USAGE(settings.key_rank >= 0 && settings.value_rank >= 0 &&
                      (settings.key_rank == 0) == (settings.value_rank == 0),
                  "--key-rank {} --value-rank {}: expected two positive numbers, or none",
                  settings.key_rank, settings.value_rank);
  check_tokens("--recompress-every", settings.recompress_every, 0);  // 0: never
  if (!settings.kv_dtype.empty()) {
    try {
      parse_kv_dtype(settings.kv_dtype);
    } catch (const Error& error) {
      fail_usage("--kv-dtype: {}", error.what());
    }
  }
}

}  // namespace

std::string to_string(Factor value) { return name_of(kFactors, value); }
std::string to_string(RankAllocation value) { return name_of(kRankAllocations, value); }
std::string to_string(UnmergedChoice value) { return name_of(kUnmergedChoices, value); }
std::string to_string(Gauge value) { return name_of(kGauges, value); }

Factor parse_factor(const std::string& name) { return value_of(kFactors, name, "factorisation"); }
RankAllocation parse_rank_allocation(const std::string& name) {
  return value_of(kRankAllocations, name, "rank allocation");
}
UnmergedChoice parse_unmerged_choice(const std::string& name) {
  return value_of(kUnmergedChoices, name, "form of unmerged tokens");
}
Gauge parse_gauge(const std::string& name) { return value_of(kGauges, name, "gauge"); }

Json to_json(const ConvertSettings& settings) {
  Json json;
  json["method"] = settings.method;
  json["preset"] = settings.preset;
  json["layers_per_group"] = settings.layers_per_group;
  json["rank"] = settings.rank;
  json["kept_ratio"] = settings.kept_ratio;
  json["rank_multiple"] = settings.rank_multiple;
  json["rank_allocation"] = to_string(settings.rank_allocation);
  json["factor"] = to_string(settings.factor);
  json["merge"] = to_string(settings.merge);
  json["ls_fisher_weights"] = settings.ls_fisher_weights;
  json["refit"] = settings.refit;
  json["gauge"] = to_string(settings.gauge);
  json["granularity"] = to_string(settings.granularity);
  json["prefill"] = to_string(settings.prefill);
  json["unmerged"] = to_string(settings.unmerged);
  json["sink_tokens"] = settings.sink_tokens;
  json["window_tokens"] = settings.window_tokens;
  json["block_tokens"] = settings.block_tokens;
  json["heads_per_group"] = settings.heads_per_group;
  json["joint"] = settings.joint;
  json["value_ratio"] = settings.value_ratio;
  json["key_rank"] = settings.key_rank;
  json["value_rank"] = settings.value_rank;
  json["later"] = to_string(settings.later);
  json["recompress_every"] = settings.recompress_every;
  json["solver"] = to_string(settings.solver);
  json["kv_dtype"] = settings.kv_dtype;
  json["context"] = settings.context;
  json["tokens_in_flight"] = settings.tokens_in_flight;
  json["metric"] = settings.cache_metric ? to_string(*settings.cache_metric) : "";
  json["coded"] = to_json(settings.coded);
  json["fusion"] = to_json(settings.fusion);
  json["pairing"] = to_json(settings.pairing);
  json["seed"] = settings.seed;
  json["device"] = settings.device;
  return json;
}

void apply_preset(ConvertSettings& settings, const std::string& name) {
  const Method& method = find_method(settings.method);
  KVC_CHECK_USAGE(name == "paper", "--preset {}: expected paper", name);
  settings.preset = name;
  method.apply_paper_preset(settings);
}

void resolve(ConvertSettings& settings) {
  const Method& method = find_method(settings.method);
  KVC_CHECK_USAGE(!settings.cache_metric || method.needs != nullptr,
                  "--metric: method {} has no calibrated basis; leave it out, or use --method "
                  "coded, pca or xkv-static",
                  settings.method);
  method.fix_settings(settings);
  check_ranges(settings);
  check_principal(settings);
  if (settings.merge == MergeRule::kNone) {
    settings.refit = false;
  }
  if (settings.merge != MergeRule::kLs) {
    settings.ls_fisher_weights = false;
  }
  KVC_CHECK_USAGE(settings.gauge == Gauge::kSvd || settings.merge == MergeRule::kLs,
                  "--gauge pivot requires --merge ls; other rules merge latents in the "
                  "factorisation's coordinates");
}

bool needs_calibration(const ConvertSettings& settings) {
  return settings.factor == Factor::kWhitened;
}

StatisticsNeeds statistics_needs(const ModelConfig& config, const ConvertSettings& settings) {
  const Method& method = find_method(settings.method);
  return method.needs == nullptr ? StatisticsNeeds{} : method.needs(config, settings);
}

bool needs_fisher(const ConvertSettings& settings) {
  return settings.merge == MergeRule::kFisher || settings.ls_fisher_weights ||
         settings.rank_allocation == RankAllocation::kFisher;
}

}  // namespace kvc
