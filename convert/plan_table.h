// Cost and saving of a conversion, from the config alone: the table of --plan.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "convert/defaults.h"
#include "core/json.h"
#include "core/kv_plan.h"
#include "core/payback.h"
#include "model/config.h"

namespace kvc {

// One latent group, or adjacent layers that are alike (group -1).
struct PlanRow {
  KvSource source = KvSource::kPlain;
  int group = -1, first_layer = 0, num_layers = 0;
  std::int64_t rank = 0;
  std::int64_t plain_bytes = 0, unmerged_bytes = 0, merged_bytes = 0;  // per token
  double kept_unmerged = 1, kept_merged = 1, kept_at_target = 1;  // at the table's context length
  std::int64_t weights_growth_bytes = 0;  // estimated factors, less the projections they replace
  std::string ends;  // difference of the next layer that ends the group: "window", "RoPE"
  // Coded layers:
  std::string scope, form;
  int num_blocks = 0;
  std::int64_t channels = 0;  // of a block
  double coded_bytes = 0;     // per token of all their layers, gains included
  double bits_per_channel = 0;
  std::int64_t key_products = 0;  // multiplications that rebuild the key of a token and KV head
};

// What a conversion does on two cores with some calibration text, that text not counted.
struct PlannedWork {
  std::int64_t num_tokens = 0;
  double seconds = 0;
};

struct PlanTable {
  KvPlan plan;
  KvDtype dtype = KvDtype::kBFloat16;  // of the cache; of coded ones of what stays exact
  std::int64_t context = 0;            // tokens
  std::vector<PlanRow> rows;
  double kept_unmerged = 1, kept_merged = 1, kept_at_target = 1;  // of the whole cache
  double unmerged_share = 0;  // of the tokens outside sinks and window, at the target
  std::int64_t weights_growth_bytes = 0;
  Payback payback;
  std::int64_t peak_memory_bytes = 0;  // of the conversion without Fisher information, estimated
  double seconds = 0;                  // of the factorisation on two cores, estimated
  std::vector<std::string> notes;      // sentences
  // Coded caches:
  std::int64_t exact_tokens = 0;        // of the context
  double kept_coded = 1;                // of a token that is coded
  std::int64_t calibration_tokens = 0;  // least number
  PlannedWork chosen, thorough;  // with the text that is asked for, and with that of --thorough

  bool is_coded() const { return !plan.coded.empty(); }
};

struct PlanRequest;
// A row for layers of a source other than plain; row.num_layers says how many of the adjacent ones it is for.
using MakeRow = std::function<PlanRow(int first_layer, int num_layers)>;
// Adds rows for all layers of the plan; `make_row` gets those that are not plain.
void add_rows(PlanTable& table, const PlanRequest& request, const MakeRow& make_row);

PlanTable plan_table(const ModelConfig& config, const ConvertSettings& settings, bool force,
                     const CalibrationRequest& effort = {});
Json to_json(const PlanTable& table);
std::string to_text(const PlanTable& table);

constexpr double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace kvc
