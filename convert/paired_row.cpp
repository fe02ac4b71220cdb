#include "convert/paired_row.h"

#include <fmt/format.h>

#include "convert/plan.h"

namespace kvc {
namespace {

PlanRow paired_row(const PlanTable& table, int first_layer) {
  const KvPlan& plan = table.plan;
  const auto plain = static_cast<double>(2 * plain_layer_bytes(plan, table.context, table.dtype));
  const auto kept = [&](bool retains) {
    const PairTokens tokens = merged_pair(plan, table.context, retains);
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

}  // namespace

void fill_paired_table(PlanTable& table, const PlanRequest& request) {
  add_rows(table, request, [&](int first_layer, int) { return paired_row(table, first_layer); });
  if (!table.plan.paired) {
    return;
  }
  const PairedLayers& paired = *table.plan.paired;
  table.notes.push_back(fmt::format(
      "of a prompt's keys and values {} pairs of layers store one direction, and a norm per layer "
      "and KV head; generated tokens stay plain",
      paired.first_layers.size()));
  table.notes.push_back(
      fmt::format("tokens whose layers differ {} keep both layers' besides: at most {:g} % of the "
                  "keys, and of the values, which is what this table counts",
                  paired.retains_similar ? "least" : "most", 100 * paired.retained));
}

}  // namespace kvc
