// kvconvert's own stage: turns a checkpoint and its statistics into a KV plan and its tensors.
//
// Writes <out>/conversion.h5 and <out>/conversion.safetensors (core/conversion_file.h), as a
// directory that is complete or absent.
#pragma once

#include <any>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <typeindex>
#include <vector>

#include "convert/options.h"
#include "core/checkpoint.h"
#include "core/conversion_file.h"
#include "core/json.h"
#include "core/kv_plan.h"
#include "core/provenance.h"
#include "core/token_set.h"
#include "model/config.h"

namespace kvc {

// The metric that weights errors of keys and values when their basis is chosen.
//   fisher   the gradient's second moment (fisher/metric.h)
//   attn     attention's output alone (calibrate/attention_metric.h)
//   attn_fs  attn, each layer's keys and values scaled to the gradient's energy
//   none     all alike
enum class CacheMetric { kFisher, kAttention, kScaledAttention, kNone };

std::string to_string(CacheMetric);
bool needs_gradient(CacheMetric metric);   // metric.h5
bool needs_attention(CacheMetric metric);  // covariance.h5 with the attention metric

// What every method can be told, and in own() what single ones can.
struct ConvertSettings {
  std::string method = "commonkv";  // a row of convert/methods/
  std::string preset;               // "" or "paper"
  int layers_per_group = 4;
  double kept_ratio = 0.5;  // compressed KV bytes / original KV bytes, in (0, 1]
  std::int64_t sink_tokens = 4;
  std::int64_t window_tokens = 128;
  std::int64_t block_tokens = 64;
  PrefillMode prefill = PrefillMode::kExact;
  std::string kv_dtype;      // planned dtype of the cache; empty: the checkpoint's
  std::int64_t context = 0;  // tokens of the planned cache; 0: min(max_position, 8192)
  // Cached tokens of all sequences together; 0: the context, at least 8192. A conversion is refused if it saves memory only
  // above four times as many.
  std::int64_t tokens_in_flight = 0;
  // For methods with StatisticsNeeds; unset: the method's own
  std::optional<CacheMetric> cache_metric;
  bool any_fit = false;  // nothing is refused for how badly it was fitted
  std::uint64_t seed = 0;
  std::string device = "cpu";  // --device: of statistics, factorisation and fits

  // Settings of a kind that only some methods know, a struct with defaults (Method::options).
  template <typename Own>
  Own& own() {
    std::any& held = own_[typeid(Own)];
    if (!held.has_value()) {
      held = Own{};
    }
    return std::any_cast<Own&>(held);
  }
  template <typename Own>
  const Own& own() const {
    static const Own defaults{};
    const auto held = own_.find(typeid(Own));
    return held == own_.end() ? defaults : std::any_cast<const Own&>(held->second);
  }

 private:
  std::map<std::type_index, std::any> own_;
};
// The values that the method knows, under the keys of their options.
Json to_json(const ConvertSettings& settings);

// The options of all methods alike; `settings` must outlive them.
Options common_options(ConvertSettings& settings);
// Those of single methods, each kind once.
std::vector<Options> own_options(ConvertSettings& settings);

// For methods whose tokens are all stored in one way: no sinks, window, blocks or groups, and exact prompts.
void leave_no_exact_tokens(ConvertSettings& settings);

// Applies preset `name` ("paper") for settings.method; later settings override it. UsageError for
// an unknown preset or method.
void apply_preset(ConvertSettings& settings, const std::string& name);
// Sets what the method prescribes, then checks ranges: UsageError naming a flag out of range.
void resolve(ConvertSettings& settings);

// Whether a conversion requires these inputs.
bool needs_calibration(const ConvertSettings& settings);
bool needs_fisher(const ConvertSettings& settings);
// Inputs of coded caches and calibrated directions: sums over adjacent layers together (calibrate/covariance.h,
// fisher/metric.h).
struct StatisticsNeeds {
  int joint_layers = 0;           // layers taken together; 0: no covariance
  bool attention_metric = false;  // beside the covariance
  bool gradient_metric = false;   // likewise
  std::int64_t least_tokens = 0;  // behind the sinks of all sequences
};
StatisticsNeeds statistics_needs(const ModelConfig& config, const ConvertSettings& settings);

struct ConvertInputs {
  std::filesystem::path checkpoint;
  std::filesystem::path tokens;       // tokens.h5: refit, errors in the report, sensitivity
  std::filesystem::path calibration;  // calibration.h5, or empty
  std::filesystem::path fisher;       // fisher.h5, or empty; likewise the next two
  std::filesystem::path covariance{};
  std::filesystem::path metric{};
  std::filesystem::path out;      // directory
  std::filesystem::path state{};  // file from which an interrupted distillation resumes, or empty
  std::optional<KvPlan>
      plan{};  // that make_plan() gave without scores; used where none are measured
  bool force = false;
};
Provenance conversion_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                                 const ConvertSettings& settings);
void convert(const ConvertInputs& inputs, const ConvertSettings& settings);

}  // namespace kvc
