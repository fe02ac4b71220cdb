#include "convert/sweep/sweep_measurement.h"

#include <cmath>
#include <utility>

#include "convert/defaults.h"
#include "convert/methods/methods.h"
#include "convert/plan.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/output.h"
#include "core/progress.h"
#include "core/provenance.h"
#include "core/scratch_directory.h"
#include "model/cache_plan.h"
#include "model/tokenizer/tokenizer.h"
#include "validate/reference_run.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kContexts[] = {1024, 4096, 16384, 32768, 131072};  // of the table of memory

// Lengths that the model can have, its longest included.
std::vector<std::int64_t> contexts(const ModelConfig& config) {
  std::vector<std::int64_t> lengths;
  for (const std::int64_t tokens : kContexts) {
    if (tokens < config.max_position_embeddings) {
      lengths.push_back(tokens);
    }
  }
  if (config.max_position_embeddings <= kContexts[std::size(kContexts) - 1]) {
    lengths.push_back(config.max_position_embeddings);
  }
  return lengths;
}

// Bytes of one sequence by its length; `scale` converts ratios of `dtype` to the model's own.
Json cache_json(const KvPlan& plan, const ModelConfig& config, KvDtype dtype, double scale) {
  Json rows = Json::array();
  for (const std::int64_t tokens : contexts(config)) {
    const std::int64_t original = original_bytes(plan, tokens, cache_dtype(config));
    const double kept = scale * planned_kept_ratio(plan, tokens, dtype);
    rows.push_back({{"tokens", tokens},
                    {"bytes", std::llround(kept * static_cast<double>(original))},
                    {"original_bytes", original}});
  }
  return rows;
}

// Names a directory or file after what it depends on.
std::string key_of(const Json& json) { return sha256_hex(json.dump()).substr(0, 16); }

Json text_hashes(const std::vector<fs::path>& texts) {
  Json hashes = Json::array();
  for (const fs::path& text : texts) {
    hashes.push_back(sha256_hex_of_file(text));
  }
  return hashes;
}

fs::path made(const fs::path& directory) {
  fs::create_directories(directory);
  return directory;
}

template <typename Measure>
Json stored_or(const fs::path& work, const Json& key, const std::string& name,
               const Measure& measure) {
  const fs::path file = made(work / "results") / (key_of(key) + ".json");
  if (fs::exists(file)) {
    try {
      Json row = read_json(file, std::size_t{64} << 20);
      row["name"] = row["validation"]["options"]["candidate"] = name;
      log_info("measurement: reused from an earlier run");
      return row;
    } catch (const Error& error) {
      log_info(fmt::format("measured again: {}", error.what()));
    }
  }
  Json row = {{"name", name}, {"status", "measured"}};
  row.update(measure());
  row["validation"]["options"]["candidate"] = name;
  write_file_atomically(file, dump_json(row), true);
  return row;
}

Json measured(const ValidationReport& report, const std::string& command) {
  return {{"command", command},
          {"kept_ratio", report.kept_ratio},
          {"payback", report.payback ? to_json(*report.payback) : Json(nullptr)},
          {"cache", nullptr},
          {"validation", to_json(report)}};
}

}  // namespace

SweepMeasurement::SweepMeasurement(const SweepOptions& options, const Original& original,
                                   fs::path work)
    : base_(options.base), original_(original), work_(std::move(work)) {
  if (!work_.empty()) {
    reference_.emplace(work_ / "reference");
  }
}

PlannedCandidate SweepMeasurement::plan(const SweepCandidate& candidate) const {
  PlannedCandidate planned{.options = candidate.options, .plan = {}};
  planned.options.validation_text = base_.validation_text;
  choose_settings(planned.options, original_);
  planned.plan = plan_conversion(planned.options, original_.config);
  return planned;
}

Json SweepMeasurement::measure(const std::string& name, const PlannedCandidate& planned) const {
  const StagePaths paths = stage_paths(planned.options);
  const TokenSet tokens = prepare_tokens(planned.options, original_, paths.tokens);
  return stored_or(work_, conversion_key(planned.options, tokens), name,
                   [&] { return evaluate(planned, tokens, paths); });
}

Json SweepMeasurement::measure_plain(const SweepCandidate& candidate) const {
  return stored_or(work_, plain_key(candidate), candidate.name,
                   [&] { return evaluate_plain(candidate); });
}

std::uintmax_t SweepMeasurement::reference_bytes() const {
  return kept_logits_bytes(reference_->path());
}

Json SweepMeasurement::evaluate_plain(const SweepCandidate& candidate) const {
  ValidateOptions validation;
  validation.reference = validation.candidate = base_.checkpoint;
  validation.texts = base_.validation_text;
  validation.seed = base_.settings.seed;
  validation.kv_dtype = candidate.kv_dtype;
  validation.policy = candidate.policy;
  validation.reference_logits = reference_->path();
  const ValidationReport report = validate(validation);
  Json row =
      measured(report, "kvrun CHECKPOINT " + candidate.name.substr(candidate.name.find("--")));
  if (to_string(candidate.policy) == to_string(TokenPolicy{})) {
    const KvPlan plan = plain_plan(original_.config);
    const KvDtype dtype = parse_kv_dtype(candidate.kv_dtype);
    const double scale =
        static_cast<double>(original_bytes(plan, 1, dtype)) /
        static_cast<double>(original_bytes(plan, 1, cache_dtype(original_.config)));
    row["cache"] = cache_json(plan, original_.config, dtype, scale);
  }
  return row;
}

Json SweepMeasurement::evaluate(const PlannedCandidate& planned, const TokenSet& tokens,
                                const StagePaths& paths) const {
  check_evaluation_text(validation_options(planned.options), original_.config,
                        tokens.source_hashes);
  const fs::path conversion = paths.conversion / "conversion";
  if (!artifact_matches(
          conversion / "conversion.h5",
          conversion_provenance(original_.checkpoint, tokens, planned.options.settings))) {
    fs::remove_all(conversion);  // of the candidate before
  }
  const ScratchDirectory exported(work_ / "export");
  const Outcome outcome =
      convert_into(planned.options, original_, planned.plan, tokens, paths, exported.path());
  Json row = measured(*outcome.report, planned.options.command);
  const ConvertSettings& settings = planned.options.settings;
  row["cache"] = cache_json(
      outcome.conversion.plan, original_.config, planned_dtype(original_.config, settings),
      planned_type_scale(outcome.conversion.plan, original_.config, settings));
  return row;
}

Json SweepMeasurement::plain_key(const SweepCandidate& candidate) const {
  return {{"tool_version", kToolVersion},
          {"checkpoint", original_.checkpoint.hash()},
          {"tokenizer", Tokenizer::hash_of(base_.checkpoint)},
          {"kv_dtype", candidate.kv_dtype},
          {"policy", to_string(candidate.policy)},
          {"texts", text_hashes(base_.validation_text)},
          {"seed", base_.settings.seed}};
}

Json SweepMeasurement::conversion_key(const PipelineOptions& options,
                                      const TokenSet& tokens) const {
  const Provenance provenance =
      conversion_provenance(original_.checkpoint, tokens, options.settings);
  return {{"tool_version", provenance.tool_version}, {"checkpoint", provenance.checkpoint_hash},
          {"tokens", provenance.tokens_hash},        {"options", provenance.options},
          {"factor_dtype", options.factor_dtype},    {"texts", text_hashes(base_.validation_text)},
          {"any_fit", options.settings.any_fit}};
}

// Candidates share a directory of tokens if they ask for the same text, and of statistics if those are the same.
StagePaths SweepMeasurement::stage_paths(const PipelineOptions& options) const {
  const CalibrationEffort effort =
      choose_effort(original_.config, options.settings, options.effort);
  Json text = {{"self", options.calibration.self},
               {"builtin", options.calibration.builtin},
               {"files", Json::array()},
               {"own", find_method(options.settings.method).calibration.with_own_text},
               {"rows", effort.num_sequences},
               {"tokens", effort.seq_len}};
  for (const fs::path& file : options.calibration.files) {
    text["files"].push_back(file.string());
  }
  const StatisticsNeeds needs = statistics_needs(original_.config, options.settings);
  const Json statistics = {{"layers", needs.joint_layers},
                           {"attention", needs.attention_metric},
                           {"sinks", needs.joint_layers > 0 ? options.settings.sink_tokens : 0},
                           {"device", options.settings.device}};
  const fs::path tokens = made(work_ / ("text-" + key_of(text)));
  return {.tokens = tokens,
          .statistics = made(tokens / ("statistics-" + key_of(statistics))),
          .conversion = work_,
          .reference = reference_->path()};
}

}  // namespace kvc
