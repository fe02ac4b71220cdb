// Converts and evaluates one candidate of a sweep.
#pragma once

#include <filesystem>

#include "convert/sweep/sweep.h"
#include "core/checkpoint.h"
#include "model/config.h"

namespace kvc {

// A conversion whose open settings are chosen.
struct PlannedCandidate {
  PipelineOptions options;
  KvPlan plan;
};

// Refers to its arguments.
class SweepMeasurement {
 public:
  SweepMeasurement(const SweepOptions& options, const Checkpoint& checkpoint,
                   const ModelConfig& config)
      : options_(options), checkpoint_(checkpoint), config_(config) {}

  // Error where the method refuses; of a candidate that is not plain.
  PlannedCandidate plan(const SweepCandidate& candidate) const;
  // A candidate's row (sweep_report.h), from an earlier run in the directory `work` where there is one.
  Json measure(const SweepCandidate& candidate, const std::filesystem::path& work) const;

 private:
  Json measure_plain(const SweepCandidate& candidate) const;
  Json measure_conversion(const PlannedCandidate& planned, const StagePaths& paths,
                          const std::filesystem::path& work) const;
  Json plain_key(const SweepCandidate& candidate) const;
  Json conversion_key(const PipelineOptions& options, const TokenSet& tokens) const;
  StagePaths stage_paths(const PipelineOptions& options, const std::filesystem::path& work) const;

  const SweepOptions& options_;
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
};

}  // namespace kvc
