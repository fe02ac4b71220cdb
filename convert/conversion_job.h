// What a conversion works on: a checkpoint, what was measured on it, and the plan to fill.
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
  const FisherInformation& fisher;           // empty where needs_fisher() says no
  at::Device device;
  const std::filesystem::path& directory;  // for scratch files
  KvPlan& plan;                            // ranks and the like may fall to what is effective
  FactorSpill& factors;                    // takes the tensors
  std::vector<FusedReport>& fused_report;  // takes what the fits of fused layers are worth
  Json& distillation;                      // likewise what a distillation reports
  const std::filesystem::path& state;      // of a distillation, to go on from; or empty
  std::vector<CodedReport>& coded_report;  // takes what coded blocks are worth
};

}  // namespace kvc
