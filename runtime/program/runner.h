// kvrun's engine: on the CPU or on a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "model/config.h"
#include "runtime/generate.h"
#include "runtime/program/run.h"
#include "runtime/turn_sequence.h"

namespace kvc {

// The model's part of a report.
struct RunModel {
  KvPlan plan;
  TokenPolicy policy;
  KvDtype original_kv_dtype = KvDtype::kFloat32;  // of the model's own cache (cache_dtype)
  std::int64_t page_tokens = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t kv_peak_bytes = 0;
  bool has_part_times = false;
};

struct Runner {
  ModelConfig config;
  std::function<GenerateResult(const Engine::Ids&, const GenerateOptions&, const TokenVisitor&)>
      generate;
  std::function<RunModel(const GenerateResult&)> describe;
  // A text that grows turn by turn; valid while the runner lives.
  std::function<std::unique_ptr<TurnSequence>()> turns;
};

// Loads the model onto options.device. Error if this build or machine has no such device, or the GPU runtime does
// not support the options.
Runner load_runner(const RunOptions& options);

}  // namespace kvc
