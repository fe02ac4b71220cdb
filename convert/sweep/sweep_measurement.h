// Converts and evaluates one candidate of a sweep.
#pragma once

#include <filesystem>

#include "convert/sweep/sweep.h"
#include "core/json.h"

namespace kvc {

// A conversion whose open settings are chosen.
struct PlannedCandidate {
  PipelineOptions options;
  KvPlan plan;
};

// Refers to its arguments.
class SweepMeasurement {
 public:
  SweepMeasurement(const SweepOptions& options, const Original& original)
      : base_(options.base), original_(original) {}

  // Error where the method refuses; of a candidate that is not plain.
  PlannedCandidate plan(const SweepCandidate& candidate) const;
  // Rows (sweep_report.h) of a candidate that is planned and of a plain one, from an earlier run in the directory
  // `work` where there is one.
  Json measure(const std::string& name, const PlannedCandidate& planned,
               const std::filesystem::path& work) const;
  Json measure_plain(const SweepCandidate& candidate, const std::filesystem::path& work) const;

 private:
  Json evaluate_plain(const SweepCandidate& candidate) const;
  Json evaluate(const PlannedCandidate& planned, const TokenSet& tokens, const StagePaths& paths,
                const std::filesystem::path& work) const;
  Json plain_key(const SweepCandidate& candidate) const;
  Json conversion_key(const PipelineOptions& options, const TokenSet& tokens) const;
  StagePaths stage_paths(const PipelineOptions& options, const std::filesystem::path& work) const;

  const PipelineOptions& base_;
  const Original& original_;
};

}  // namespace kvc
