// kvconvert --sweep: many conversions of one checkpoint, measured on the same text, in one report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "convert/sweep/sweep_grid.h"
#include "core/json.h"

namespace kvc {

struct SweepOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path out;   // empty: <checkpoint's name>-sweep in the current directory
  std::filesystem::path work;  // empty: .<name of out>.work beside out, removed when the sweep ends
  std::vector<SweepCandidate> candidates;
  std::vector<std::filesystem::path> validation_text{};  // empty: the built-in text
  std::uint64_t seed = 0;
  bool plan_only = false, force = false, json = false;
};

// With plan_only, prints what each candidate is planned to keep and stops. Otherwise converts and evaluates one after
// the other, and writes out/sweep.json and out/report.html; converted weights are not kept. Candidates of equal
// calibration text share it, and those of equal statistics share them. Each finished one is kept in the work directory,
// from which an interrupted sweep goes on. Candidates that a method refuses have their reason in the report; Error at
// the end if others failed.
void run_sweep(SweepOptions options);

}  // namespace kvc
