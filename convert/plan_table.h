// Cost and saving of a conversion, from the config alone: the table of --plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "core/json.h"
#include "core/kv_plan.h"
#include "core/payback.h"
#include "model/config.h"

namespace kvc {

// One latent group, or a run of adjacent layers of another source (group -1).
struct PlanRow {
  KvSource source = KvSource::kPlain;
  int group = -1, first_layer = 0, num_layers = 0;
  std::int64_t rank = 0;
  std::int64_t plain_bytes = 0, unmerged_bytes = 0, merged_bytes = 0;  // per token
  double kept_unmerged = 1, kept_merged = 1, kept_at_target = 1;  // at the table's context length
  std::int64_t weights_growth_bytes = 0;  // estimated factors, less the projections they replace
  std::string ends;  // difference of the next layer that ends the group: "window", "RoPE"
};

struct PlanTable {
  KvPlan plan;
  KvDtype dtype = KvDtype::kBFloat16;  // of the cache
  std::int64_t context = 0;            // tokens
  std::vector<PlanRow> rows;
  double kept_unmerged = 1, kept_merged = 1, kept_at_target = 1;  // of the whole cache
  double unmerged_share = 0;  // of the tokens outside sinks and window, at the target
  std::int64_t weights_growth_bytes = 0;
  Payback payback;
  std::int64_t peak_memory_bytes = 0;  // of the conversion without Fisher information, estimated
  double seconds = 0;                  // of the factorisation on two cores, estimated
  std::vector<std::string> notes;      // sentences
};

PlanTable plan_table(const ModelConfig& config, const ConvertSettings& settings, bool force);
Json to_json(const PlanTable& table);
std::string to_text(const PlanTable& table);

// Prints the table of a resolved conversion on stdout, as text or JSON. No weights are needed.
void print_plan(const ModelConfig& config, const ConvertSettings& settings, bool force, bool json);

}  // namespace kvc
