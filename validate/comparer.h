// Original and candidate over the same rows, batch by batch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kv_plan.h"
#include "core/kv_plan_parts.h"
#include "runtime/engine.h"
#include "validate/comparison.h"
#include "validate/model_run.h"
#include "validate/reference_run.h"
#include "validate/validate.h"

namespace kvc {

// Refers to both models.
class Comparer {
 public:
  // `original`: the reference's own cache, as plain_plan() of its config. `reads_alike`: the candidate's
  // teacher-forced logits are the reference's, and need no pass.
  Comparer(ReferenceRun& reference, KvPlan original, Engine& candidate, bool reads_alike,
           const ValidateOptions& options);

  void add(const TokenRows& rows);
  // Bytes, numbers of rows and tokens, both settings and parts.
  ValidationReport finalize();

 private:
  struct Part {
    LayerRange layers;
    ComparisonAccumulator continuation;
  };

  ReferenceRun& reference_;
  KvPlan original_;
  Engine& candidate_;
  std::int64_t block_tokens_;
  ComparisonAccumulator teacher_forced_, continuation_;
  std::vector<Part> parts_;
  ValidationReport report_;
};

}  // namespace kvc
