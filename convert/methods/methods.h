// The conversion methods: one file each, one row each in the table.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/conversion_job.h"

namespace kvc {

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

struct Method {
  std::string_view name;
  // Sets what the method's paper uses.
  void (*apply_paper_preset)(ConvertSettings& settings);
  // Sets what the method prescribes.
  void (*fix_settings)(ConvertSettings& settings);
  // From config alone, or with measured `fisher_scores` [num_layers, 2] (key, value), else null. Throws
  // Error with the numbers and the nearest settings that work, unless `force`.
  KvPlan (*make_plan)(const ModelConfig& config, const ConvertSettings& settings, bool force,
                      const std::vector<double>* fisher_scores);
  // Fills job.factors, one add() per part of the plan; returns the report of each.
  std::vector<GroupReport> (*convert)(ConversionJob& job);
  // Statistics required beyond those of ConvertSettings' flags; null: none.
  StatisticsNeeds (*needs)(const ModelConfig& config, const ConvertSettings& settings) = nullptr;
  // --plan's output, as JSON or text; null: the table of latent groups (convert/plan_table.h).
  std::string (*plan_text)(const ModelConfig& config, const ConvertSettings& settings, bool force,
                           bool json) = nullptr;
  // Default exact tokens of a cache of `context` tokens; null: none to choose.
  ExactTokens (*exact_tokens)(std::int64_t context) = nullptr;
  // The lowest kept_ratio of the plan's context that all other settings allow, 1 or more if they save nothing;
  // null: kept_ratio is no target but follows from them.
  double (*least_kept_ratio)(const ModelConfig& config, const ConvertSettings& settings) = nullptr;
  CalibrationText calibration = {};
  // Does it convert models that cache latents (DeepSeek-V2)?
  bool takes_own_latents = false;
};

std::span<const Method> methods();
const Method& find_method(std::string_view name);  // UsageError listing the known ones

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

}  // namespace kvc
