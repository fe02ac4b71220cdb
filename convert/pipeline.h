// The whole conversion: tokens, calibration, Fisher information, factorisation, export and
// validation. Each is an artifact in the work directory, so an interrupted run resumes there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "convert/defaults.h"
#include "convert/serving_engine.h"
#include "core/checkpoint.h"
#include "core/token_set.h"
#include "export/export.h"
#include "model/token_input.h"

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
  bool plan_only = false;
  bool validate = true;
  bool force = false;
  bool json = false;
};

// Prints the plan's table (stdout) and stops, or runs every stage and prints one line with the
// saving and the loss. The output directory, with report.json, report.html
// and README.md (if it is validated), is complete or absent.
void run_pipeline(PipelineOptions options);

// The calibration tokens: what the model writes, the built-in text and files, mixed. Writes `work`/tokens.h5, and
// beside it self.h5 with the rows that the model wrote; those of an earlier run with the same settings stay, and one
// that was interrupted is gone on with.
TokenSet prepare_tokens(const PipelineOptions& options, const Checkpoint& checkpoint,
                        const ModelConfig& config, const std::filesystem::path& work);

// Each stage writes its artifact in the directory `work`, unless what it would write is there already from
// an earlier run. `plan`: the conversion's, unless Fisher information is to share its ranks. Returns the conversion's
// directory.
std::filesystem::path run_stages(const PipelineOptions& options, const Checkpoint& checkpoint,
                                 const ModelConfig& config, const KvPlan& plan,
                                 const std::filesystem::path& work);

}  // namespace kvc
