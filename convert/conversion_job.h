// Inputs of a conversion: a checkpoint, its statistics, and the plan to fill.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "convert/convert.h"
#include "convert/factor_spill.h"
#include "core/checkpoint.h"
#include "core/conversion_file.h"
#include "core/kv_plan.h"
#include "core/statistics_file.h"
#include "core/token_set.h"
#include "model/config.h"

namespace kvc {

struct ConversionJob {
  const Checkpoint& checkpoint;
  const ModelConfig& config;
  const ConvertSettings& settings;
  const TokenSet& tokens;
  const std::filesystem::path& calibration;  // calibration.h5, or empty; likewise the next two
  const std::filesystem::path& covariance;   // covariance.h5
  const std::filesystem::path& metric;       // metric.h5
  const FisherInformation& fisher;           // empty if needs_fisher() is false
  at::Device device;
  const std::filesystem::path& directory;  // for scratch files
  KvPlan& plan;                            // ranks may be lowered to the effective ones
  FactorSpill& factors;                    // output: tensors
  std::vector<FusedReport>& fused_report;  // output: fits of fused layers
  Json& distillation;                      // output: report of a distillation
  const std::filesystem::path& state;      // state from which a distillation resumes, or empty
  std::vector<CodedReport>& coded_report;  // output: errors of coded blocks
};

}  // namespace kvc
