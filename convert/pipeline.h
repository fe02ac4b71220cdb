// The whole conversion: tokens, calibration, Fisher information, factorisation, export and
// validation, each an artifact in the work directory, so that an interrupted run resumes where it
// stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "convert/calibration_effort.h"
#include "convert/convert.h"
#include "convert/defaults.h"
#include "export/export.h"
#include "model/token_input.h"

namespace kvc {

struct PipelineOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path out;   // empty: <checkpoint's name>-<method> in the current directory
  std::filesystem::path work;  // empty: .<name of out>.work beside out, removed when the run ends
  ConvertSettings settings;
  OpenSettings open;  // what of them is to be chosen for the model
  ExportFormat format = ExportFormat::kFactored;
  std::string factor_dtype = "auto";  // export/factor_type.h
  CalibrationSources calibration;
  std::vector<std::filesystem::path> validation_text;  // empty: the built-in text
  CalibrationRequest effort;                           // of calibration
  bool plan_only = false;
  bool validate = true;
  bool force = false;
  bool json = false;
};

// Prints the plan's table (stdout) and stops, or runs every stage and prints one line: what was
// kept and what it costs. The output directory appears complete, with report.json and report.html,
// or not at all.
void run_pipeline(PipelineOptions options);

}  // namespace kvc
