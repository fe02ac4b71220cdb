#include <algorithm>

#include "convert/convert.h"
#include "convert/methods/methods.h"
#include "core/error.h"

namespace kvc {
namespace {

constexpr EnumName<CacheMetric> kMetrics[] = {{CacheMetric::kFisher, "fisher"},
                                              {CacheMetric::kAttention, "attn"},
                                              {CacheMetric::kScaledAttention, "attn_fs"},
                                              {CacheMetric::kNone, "none"}};

bool is_kv_dtype(const std::string& name) {
  try {
    return name.empty() || !to_string(parse_kv_dtype(name)).empty();
  } catch (const Error& error) {
    fail_usage("--kv-dtype: {}", error.what());
  }
}

}  // namespace

std::string to_string(CacheMetric value) { return name_of(kMetrics, value); }

bool needs_gradient(CacheMetric metric) {
  return metric == CacheMetric::kFisher || metric == CacheMetric::kScaledAttention;
}

bool needs_attention(CacheMetric metric) {
  return metric == CacheMetric::kAttention || metric == CacheMetric::kScaledAttention;
}

Options common_options(ConvertSettings& settings) {
  Options options;
  const std::string known =
      method_names([](const Method&) { return true; }) +
      " (default: coded with --kept-ratio or an option of coded, else commonkv)";
  options.add("--method", "method", settings.method, known.c_str());
  options.add("--group", "layers_per_group", settings.layers_per_group,
              "Adjacent layers compressed together", "at least 1 layer",
              [](int layers) { return layers >= 1; });
  options.add("--kept-ratio", "kept_ratio", settings.kept_ratio,
              "Target: compressed / original KV bytes (default: 0.5, or the nearest possible)",
              "a fraction above 0 and at most 1", is_share);
  add_tokens(options, "--sink", "sink_tokens", settings.sink_tokens, 0,
             "First tokens that stay exact (default: by method and --context)");
  add_tokens(options, "--window", "window_tokens", settings.window_tokens, 0,
             "Last tokens that stay exact (default: by method and --context)");
  add_tokens(options, "--block", "block_tokens", settings.block_tokens, 1,
             "Generated tokens compressed at a time (default: by method and --context)");
  options.add("--prefill", "prefill", settings.prefill, parse_prefill_mode,
              "What prompts attend to: exact keys and values (default); truncated: those that "
              "latents give, as in the papers' code; coded (method coded): codes of earlier tiles, "
              "as engines do");
  add_tokens(options, "--context", "context", settings.context, 0,
             "Tokens of the cache that is planned (0: the model's context, at most 8192)");
  add_tokens(options, "--tokens-in-flight", "tokens_in_flight", settings.tokens_in_flight, 0,
             "Cached tokens of all requests together. A conversion is refused if it saves memory "
             "only above four times this number (0: --context, at least 8192)");
  std::optional<CacheMetric>& metric = settings.cache_metric;
  options.add_word(
      "--metric", "metric",
      {[&metric](const std::string& word) { metric = value_of(kMetrics, word, "metric"); },
       [&metric] { return metric ? to_string(*metric) : ""; }},
      "coded, xkv-static, pca: how errors are weighted: fisher (default for coded), attn, attn_fs "
      "or none (default for the others)");
  options.add("--kv-dtype", "kv_dtype", settings.kv_dtype,
              "xkv, xkv-static, pca: dtype of the cache that ranks are planned for; int8 gives "
              "twice the directions (default: the checkpoint's)",
              "a type", is_kv_dtype);
  return options;
}

std::vector<Options> own_options(ConvertSettings& settings) {
  std::vector<Options (*)(ConvertSettings&)> kinds;
  for (const Method& method : methods()) {
    for (const auto kind : method.options) {
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
        kinds.push_back(kind);
      }
    }
  }
  std::vector<Options> options;
  for (const auto kind : kinds) {
    options.push_back(kind(settings));
    options.back().heading = "With --method " + method_names([kind](const Method& method) {
                               return takes(method, kind);
                             });
  }
  return options;
}

Json to_json(const ConvertSettings& settings) {
  ConvertSettings copy = settings;
  Json json = {{"method", settings.method}, {"preset", settings.preset}};
  record(common_options(copy), json);
  for (const auto kind : find_method(settings.method).options) {
    record(kind(copy), json);
  }
  json["seed"] = settings.seed;
  json["device"] = settings.device;
  return json;
}

void leave_no_exact_tokens(ConvertSettings& settings) {
  settings.layers_per_group = 1;
  settings.sink_tokens = 0;
  settings.window_tokens = 0;
  settings.block_tokens = 1;
  settings.prefill = PrefillMode::kExact;
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
  check_ranges(common_options(settings));
  for (const Options& options : own_options(settings)) {
    check_ranges(options);
  }
}

bool needs_calibration(const ConvertSettings& settings) {
  const Method& method = find_method(settings.method);
  return method.factor_needs != nullptr && method.factor_needs(settings).calibration;
}

bool needs_fisher(const ConvertSettings& settings) {
  const Method& method = find_method(settings.method);
  return method.factor_needs != nullptr && method.factor_needs(settings).fisher;
}

StatisticsNeeds statistics_needs(const ModelConfig& config, const ConvertSettings& settings) {
  const Method& method = find_method(settings.method);
  return method.needs == nullptr ? StatisticsNeeds{} : method.needs(config, settings);
}

}  // namespace kvc
