// kvrun's report: JSON on standard output, statistics on standard error.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "runtime/generate.h"
#include "runtime/program/runner.h"

namespace kvc {

struct RunReport {
  const RunModel& model;
  const GenerateResult& result;
  std::vector<std::string> texts;  // of the result's sequences; empty without a tokenizer
  bool is_list = false;            // a batch, or several samples
  double load_seconds = 0;
};

// {"tokens", "text", "kv": {"bytes", "original_bytes", "kept_ratio", "tokens", "segments"}, "timing",
// "memory", "interrupted"}; for several sequences tokens, text and kv are lists.
Json run_json(const RunReport& report);
// Times, rates, time per part, weights and KV bytes by segment, peaks; one line each.
std::string run_statistics(const RunReport& report);

}  // namespace kvc
