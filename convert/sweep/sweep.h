// kvconvert --sweep: many conversions of one checkpoint, measured on the same text, in one report.
#pragma once

#include <filesystem>
#include <vector>

#include "convert/sweep/sweep_grid.h"

namespace kvc {

struct SweepOptions {
  PipelineOptions base;  // what holds for the whole sweep; `out` empty: <checkpoint's name>-sweep
  std::vector<SweepCandidate> candidates;
  std::vector<std::filesystem::path> line_files{};  // that the candidates come from
  std::filesystem::path points{};                   // sweep_points.h; empty: none
};

// With plan_only, prints what each candidate is planned to keep and stops. Otherwise converts and evaluates one after
// the other, and writes out/sweep.json and out/report.html; converted weights are not kept. Candidates of equal
// calibration text share it, and those of equal statistics share them. Each finished one is kept in the work directory,
// from which an interrupted sweep goes on. Candidates that a method refuses have their reason in the report; Error at
// the end if others failed.
void run_sweep(SweepOptions options);

}  // namespace kvc
