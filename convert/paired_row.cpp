#include "convert/paired_row.h"

#include <fmt/format.h>

namespace kvc {
namespace {

PairTokens merged_tokens(const KvPlan& plan, std::int64_t num_tokens, bool retains) {
  const std::int64_t retained = retains ? plan.paired->most_retained(num_tokens) : 0;
  return {.merged = num_tokens, .retained_keys = retained, .retained_values = retained};
}

}  // namespace

std::vector<PairTokens> merged_pairs(const KvPlan& plan, std::int64_t num_tokens, bool retains) {
  if (!plan.paired) {
    return {};
  }
  return std::vector<PairTokens>(plan.paired->first_layers.size(),
                                 merged_tokens(plan, num_tokens, retains));
}

PlanRow paired_row(const PlanTable& table, int first_layer) {
  const KvPlan& plan = table.plan;
  const auto plain = static_cast<double>(2 * plain_layer_bytes(plan, table.context, table.dtype));
  const auto kept = [&](bool retains) {
    const PairTokens tokens = merged_tokens(plan, table.context, retains);
    return static_cast<double>(pair_bytes(plan, tokens, table.dtype)) / plain;
  };
  PlanRow row;
  row.source = KvSource::kPaired;
  row.first_layer = first_layer;
  row.num_layers = 2;
  row.plain_bytes = 2 * plain_layer_bytes(plan, 1, table.dtype);
  row.merged_bytes = pair_bytes(plan, {.merged = 1}, table.dtype);
  row.unmerged_bytes =
      pair_bytes(plan, {.merged = 1, .retained_keys = 1, .retained_values = 1}, table.dtype);
  row.kept_merged = kept(false);
  row.kept_unmerged = row.kept_at_target = kept(true);
  return row;
}

void add_paired_notes(PlanTable& table) {
  const PairedLayers& paired = *table.plan.paired;
  table.notes.push_back(
      fmt::format("for a prompt's keys and values, {} pairs of layers store one direction, and a "
                  "norm per layer and KV head; generated tokens stay plain",
                  paired.first_layers.size()));
  table.notes.push_back(
      fmt::format("tokens whose layers differ {} also keep both layers' vectors: at most {:g} % of "
                  "the keys and of the values, which this table counts",
                  paired.retains_similar ? "least" : "most", 100 * paired.retained));
}

}  // namespace kvc
