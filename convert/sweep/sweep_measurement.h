// Converts and evaluates one candidate of a sweep.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "convert/sweep/sweep.h"
#include "core/json.h"
#include "core/scratch_directory.h"

namespace kvc {

// A conversion whose open settings are chosen.
struct PlannedCandidate {
  PipelineOptions options;
  KvPlan plan;
};

// Refers to its arguments.
class SweepMeasurement {
 public:
  // `work`: where finished candidates stay, and the original's logits until the end; empty to plan only.
  SweepMeasurement(const SweepOptions& options, const Original& original,
                   std::filesystem::path work = {});

  // Error where the method refuses; of a candidate that is not plain.
  PlannedCandidate plan(const SweepCandidate& candidate) const;
  // Rows (sweep_report.h) of a candidate that is planned and of a plain one, from an earlier run where there is one.
  Json measure(const std::string& name, const PlannedCandidate& planned) const;
  Json measure_plain(const SweepCandidate& candidate) const;
  std::uintmax_t reference_bytes() const;  // of the original's logits, on disk

 private:
  Json evaluate_plain(const SweepCandidate& candidate) const;
  Json evaluate(const PlannedCandidate& planned, const TokenSet& tokens,
                const StagePaths& paths) const;
  Json plain_key(const SweepCandidate& candidate) const;
  Json conversion_key(const PipelineOptions& options, const TokenSet& tokens) const;
  StagePaths stage_paths(const PipelineOptions& options) const;

  const PipelineOptions& base_;
  const Original& original_;
  std::filesystem::path work_;
  std::optional<ScratchDirectory> reference_;
};

}  // namespace kvc
