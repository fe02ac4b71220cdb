// Cost and saving of a coded conversion, from the config alone: the table of --plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/calibration_effort.h"
#include "convert/convert.h"
#include "core/json.h"
#include "core/kv_plan.h"
#include "core/payback.h"
#include "model/config.h"

namespace kvc {

// Adjacent layers whose blocks are alike.
struct CodedPlanRow {
  CodedScope scope = CodedScope::kLayer;
  int first_layer = 0, num_layers = 0, num_blocks = 0;
  std::int64_t channels = 0;     // of a block
  std::int64_t plain_bytes = 0;  // per token of all their layers
  double coded_bytes = 0;        // likewise, gains included
  double bits_per_channel = 0;
  std::int64_t weights_growth_bytes =
      0;  // estimate: depends on the coefficients that get bits, and on the factors' forms
};

struct CodedPlanTable {
  KvPlan plan;
  KvDtype dtype = KvDtype::kBFloat16;  // of what stays exact
  std::int64_t context = 0;            // tokens
  std::int64_t exact_tokens = 0;       // of these
  std::vector<CodedPlanRow> rows;
  double kept_coded = 1;       // of a token that is coded
  double kept_at_context = 1;  // of the whole cache
  std::int64_t weights_growth_bytes = 0;
  Payback payback;
  std::int64_t peak_memory_bytes = 0;   // of the conversion, estimated
  std::int64_t calibration_tokens = 0;  // least number
  // Estimated seconds of the conversion on two cores without sampling its text: with a CPU's default
  // calibration tokens, and with --thorough.
  CalibrationEffort knee, thorough;
  double seconds = 0, thorough_seconds = 0;
  std::vector<std::string> notes;
};

// As plan_table.
CodedPlanTable coded_plan_table(const ModelConfig& config, const ConvertSettings& settings,
                                bool force);
Json to_json(const CodedPlanTable& table);
std::string to_text(const CodedPlanTable& table);

}  // namespace kvc
