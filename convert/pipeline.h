// The whole conversion: tokens, calibration, Fisher information, factorisation, export and
// validation. Each is an artifact in the work directory, so an interrupted run resumes there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "convert/defaults.h"
#include "convert/serving_engine.h"
#include "core/checkpoint.h"
#include "core/payback.h"
#include "core/token_set.h"
#include "export/export.h"
#include "model/token_input.h"
#include "validate/validate.h"

namespace kvc {

struct PipelineOptions {
  std::string command;  // for the model card, without directories
  std::filesystem::path checkpoint;
  std::filesystem::path out;   // empty: <checkpoint's name>-<method> in the current directory
  std::filesystem::path work;  // empty: .<name of out>.work beside out, removed when the run ends
  ConvertSettings settings;
  OpenSettings open;                             // settings to choose for the model
  ServingEngine engine = ServingEngine::kKvrun;  // that the settings suit
  ExportFormat format = ExportFormat::kFactored;
  std::string factor_dtype = "auto";  // export/factor_file.h
  CalibrationSources calibration;
  std::vector<std::filesystem::path> validation_text;  // empty: the built-in text
  CalibrationRequest effort;                           // of calibration
  // KL divergence (nats per token) that --export mla may have beyond that of a coded cache of as many bytes
  double mla_allowed = 0.1;
  bool plan_only = false;
  bool validate = true;
  bool by_part = false;  // ValidateOptions::by_part
  bool force = false;
  bool json = false;
};

// Prints the plan's table (stdout) and stops, or runs every stage and prints one line with the
// saving and the loss. The output directory, with report.json, report.html
// and README.md (if it is validated), is complete or absent.
void run_pipeline(PipelineOptions options);

// The checkpoint to convert; with plan_only its config alone is read.
struct Original {
  Checkpoint checkpoint;
  ModelConfig config;
};
Original open_original(const PipelineOptions& options);

// Checks the settings and chooses those that were left open; logs each choice that is not the method's usual one.
void choose_settings(PipelineOptions& options, const Original& original);
// The plan of chosen settings. Error where the method refuses them; logs what the engine cannot do with it.
KvPlan plan_conversion(const PipelineOptions& options, const ModelConfig& config);

// Settles options.out, by default <checkpoint's name>-<ending> in the current directory. Error where it exists without
// force, and where it or the work directory would put an input at risk.
void settle_output(PipelineOptions& options, const std::string& ending);

// Tokens behind the sinks of all sequences.
std::int64_t num_counted(const TokenSet& tokens, std::int64_t sink_tokens);

// Error where `num_sequences` sequences have fewer tokens, `count` behind the sinks, than the method's statistics need.
void check_calibration_tokens(std::int64_t count, std::int64_t num_sequences,
                              std::int64_t sink_tokens, std::int64_t least);

// The calibration tokens: what the model writes, the built-in text and files, mixed. Writes `work`/tokens.h5, and
// beside it self.h5 with the rows that the model wrote; those of an earlier run with the same settings stay, and one
// that was interrupted is gone on with.
TokenSet prepare_tokens(const PipelineOptions& options, const Original& original,
                        const std::filesystem::path& work);

// The directories of a conversion's artifacts, which exist.
struct StagePaths {
  std::filesystem::path tokens;      // tokens.h5 and self.h5
  std::filesystem::path statistics;  // calibration.h5, fisher.h5, covariance.h5 and metric.h5
  std::filesystem::path conversion;  // conversion/, and the state of an interrupted distillation

  std::filesystem::path reference{};  // the original's logits (ValidateOptions::reference_logits)

  static StagePaths all_in(const std::filesystem::path& work) { return {work, work, work}; }
};

// Each stage writes its artifact, unless what it would write is there already from an earlier run. `plan`: the
// conversion's, unless Fisher information is to share its ranks; `tokens`: those of paths.tokens. Returns the
// conversion's directory.
std::filesystem::path run_stages(const PipelineOptions& options, const Original& original,
                                 const KvPlan& plan, const TokenSet& tokens,
                                 const StagePaths& paths);

struct Outcome {
  Conversion conversion;                     // its plan has measured ranks and bits
  std::optional<Payback> payback{};          // none of folded exports, which save nothing
  std::optional<ValidationReport> report{};  // none without options.validate
};

// Evaluates an export that will be options.out.
ValidationReport validate_export(const PipelineOptions& options,
                                 const std::filesystem::path& exported, const StagePaths& paths);

// Runs all stages, exports into the empty directory `directory` and evaluates the export.
Outcome convert_into(const PipelineOptions& options, const Original& original, const KvPlan& plan,
                     const TokenSet& tokens, const StagePaths& paths,
                     const std::filesystem::path& directory);

}  // namespace kvc
