// The model card of a converted checkpoint: README.md in the output directory.
#pragma once

#include <string>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "export/export.h"
#include "validate/validate.h"

namespace kvc {

struct ModelCard {
  const Checkpoint& checkpoint;  // the original; the licence in its README.md's metadata is kept
  std::string command;           // that converted it
  ExportFormat format = ExportFormat::kFactored;
  std::string kv_dtype{};    // of the cache that it was planned for; empty: the checkpoint's
  bool vllm_serves = false;  // what is not folded
};

// Markdown with metadata as the HuggingFace hub reads it.
std::string model_card(const ModelCard& card, const KvPlan& plan, const ValidationReport& report);

}  // namespace kvc
