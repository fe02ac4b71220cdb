// The conversion methods: one file each, one row each in the table.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/convert.h"
#include "convert/defaults.h"
#include "convert/factor_spill.h"
#include "convert/plan_table.h"
#include "core/checkpoint.h"
#include "core/conversion_file.h"
#include "core/json.h"
#include "core/kv_plan.h"
#include "core/statistics_file.h"
#include "core/token_set.h"
#include "model/arch.h"
#include "model/config.h"

namespace kvc {

// What a plan is made from: a config alone, or with what was measured.
struct PlanRequest {
  const ModelConfig& config;
  const ConvertSettings& settings;
  bool force = false;
  const std::vector<double>* fisher_scores = nullptr;  // [num_layers, 2] (key, value), or null
  CalibrationRequest effort = {};
};

// What a conversion works on: a checkpoint, what was measured on it, and the result to fill.
struct ConversionJob {
  const ConvertSettings& settings;
  const ConvertInputs& inputs;  // files of statistics
  Checkpoint checkpoint;
  ModelConfig config;
  TokenSet tokens;
  FisherInformation fisher;  // empty where needs_fisher() says no
  at::Device device;
  std::filesystem::path directory;  // for scratch files
  FactorSpill factors;              // takes the tensors
  Conversion
      result{};  // takes the reports; ranks and the like of the plan may fall to what is effective
};

// Which statistics of projections the factors come from.
struct FactorNeeds {
  bool calibration = false, fisher = false;
};

// Tokens that stay exact: the first, the last, and generated ones until their block is compressed.
struct ExactTokens {
  std::int64_t sink = 0, window = 0, block = 0;
};

// Default calibration text: rows of row_len tokens, as many as the thorough setting and as many as a CPU reads
// (docs/quality.md, amount of calibration text).
struct CalibrationText {
  std::int64_t thorough_rows = 64, knee_rows = 64, row_len = 512;
  bool with_own_text = false;  // half of it sampled from the model
};

struct ServedKind;  // convert/served_kinds.h

struct Method {
  std::string_view name;
  // What it can be told beside common_options(); kinds that several methods share are in each of them.
  std::vector<Options (*)(ConvertSettings& settings)> options;
  // Sets what the method's paper uses.
  void (*apply_paper_preset)(ConvertSettings& settings);
  // Settings that the method leaves no choice in; UsageError for some that do not go together.
  void (*fix_settings)(ConvertSettings& settings);
  // Throws Error with the numbers and the nearest settings that work, unless request.force.
  KvPlan (*make_plan)(const PlanRequest& request);
  // Fills job.factors, one call of add() for every part of the plan, and the reports of job.result.
  void (*convert)(ConversionJob& job);
  // Rows of --plan's table (add_rows), notes, and estimates where those of latent groups do not hold.
  void (*fill_table)(PlanTable& table, const PlanRequest& request);
  // What it needs of statistics; null: nothing.
  FactorNeeds (*factor_needs)(const ConvertSettings& settings) = nullptr;
  StatisticsNeeds (*needs)(const ModelConfig& config, const ConvertSettings& settings) = nullptr;
  // Default exact tokens of a cache of `context` tokens; null: none to choose.
  ExactTokens (*exact_tokens)(const ConvertSettings& settings, std::int64_t context) = nullptr;
  // The lowest kept_ratio of the plan's context that all other settings allow, 1 or more if they save nothing;
  // null: kept_ratio is no target but follows from them.
  double (*least_kept_ratio)(const PlanRequest& request) = nullptr;
  // The setting of the latents' width, where there is one.
  double& (*rank)(ConvertSettings& settings) = nullptr;
  CalibrationText calibration = {};
  // What engines other than kvrun ask of its conversions; null: they run none.
  const ServedKind* served = nullptr;
  // It converts models that cache latents (DeepSeek-V2) too.
  bool takes_own_latents = false;
};

// True if the method knows this kind of options.
bool takes(const Method& method, Options (*kind)(ConvertSettings& settings));

std::span<const Method> methods();
const Method& find_method(std::string_view name);  // UsageError listing the known ones
// The names of those that are `among` them, at least one: "commonkv, palu or coded".
std::string method_names(const std::function<bool(const Method&)>& among);

// The rows of the table.
extern const Method kCommonKv;
extern const Method kPalu;
extern const Method kCoded;
extern const Method kPca;
extern const Method kXkv;
extern const Method kXkvStatic;
extern const Method kMiniCache;
extern const Method kFusedKv;
extern const Method kFusedKvLite;
extern const Method kYoco;
extern const Method kCla;

// Why `method` cannot convert models of this family, from the traits of the table of architectures; nullopt where it
// can. Nothing else knows.
std::optional<std::string> refusal(const Method& method, const ArchSpec& arch);
// Notes for users who convert such a model; may be empty.
std::vector<std::string> family_notes(const ArchSpec& arch);

// Families by methods: the Markdown of docs/models.md, or JSON.
std::string support_text();
Json support_json();

}  // namespace kvc
