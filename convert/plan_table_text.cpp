#include <fmt/format.h>

#include <cstdio>

#include "convert/mebibytes.h"
#include "convert/methods/methods.h"
#include "convert/plan_table.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

std::string layers_text(const PlanRow& row) {
  return row.num_layers == 1
             ? fmt::format("{}", row.first_layer)
             : fmt::format("{}-{}", row.first_layer, row.first_layer + row.num_layers - 1);
}

std::string row_text(const PlanRow& row) {
  const std::string name = row.group < 0 ? to_string(row.source) : fmt::format("{}", row.group);
  const std::string rank = row.group < 0 ? "-" : fmt::format("{}", row.rank);
  const std::string ends = row.ends.empty() ? "" : "  ends: " + row.ends;
  return fmt::format(
      "{:>5}  {:>7}  {:>6}  {:>9}  {:>9}  {:>9}  {:>8.3f}  {:>8.3f}  {:>8.3f}  {:>9.1f}{}\n", name,
      layers_text(row), rank, row.plain_bytes, row.unmerged_bytes, row.merged_bytes,
      row.kept_unmerged, row.kept_merged, row.kept_at_target, mebibytes(row.weights_growth_bytes),
      ends);
}

Json to_json(const PlanRow& row) {
  Json json;
  json["group"] = row.group < 0 ? Json(nullptr) : Json(row.group);
  json["source"] = to_string(row.source);
  json["first_layer"] = row.first_layer;
  json["num_layers"] = row.num_layers;
  json["rank"] = row.rank;
  json["plain_bytes_per_token"] = row.plain_bytes;
  json["unmerged_bytes_per_token"] = row.unmerged_bytes;
  json["merged_bytes_per_token"] = row.merged_bytes;
  json["kept_ratio_unmerged"] = row.kept_unmerged;
  json["kept_ratio_merged"] = row.kept_merged;
  json["kept_ratio_at_target"] = row.kept_at_target;
  json["weights_growth_bytes"] = row.weights_growth_bytes;
  json["ends"] = row.ends.empty() ? Json(nullptr) : Json(row.ends);
  return json;
}

}  // namespace

Json to_json(const PlanTable& table) {
  Json json;
  json["plan"] = to_json(table.plan);
  json["kv_dtype"] = to_string(table.dtype);
  json["context"] = table.context;
  json["groups"] = Json::array();
  for (const PlanRow& row : table.rows) {
    json["groups"].push_back(to_json(row));
  }
  json["kept_ratio_unmerged"] = table.kept_unmerged;
  json["kept_ratio_merged"] = table.kept_merged;
  json["kept_ratio_at_target"] = table.kept_at_target;
  json["unmerged_share"] = table.unmerged_share;
  json["weights_growth_bytes"] = table.weights_growth_bytes;
  json["payback"] = to_json(table.payback);
  json["peak_memory_bytes"] = table.peak_memory_bytes;
  json["factorisation_seconds"] = table.seconds;
  json["notes"] = table.notes;
  return json;
}

std::string to_text(const PlanTable& table) {
  std::string text = fmt::format("{:>5}  {:>7}  {:>6}  {:^31}  {:^28}  {:>9}\n", "", "", "",
                                 "bytes per token", "kept_ratio", "weights");
  text += fmt::format("{:>5}  {:>7}  {:>6}  {:>9}  {:>9}  {:>9}  {:>8}  {:>8}  {:>8}  {:>9}\n",
                      "group", "layers", "rank", "plain", "unmerged", "merged", "unmerged",
                      "merged", "target", "+MiB");
  for (const PlanRow& row : table.rows) {
    text += row_text(row);
  }
  text += fmt::format(
      "whole cache of {} tokens ({}): kept_ratio {:.3f} unmerged, {:.3f} merged, {:.3f} at the "
      "target\n",
      table.context, to_string(table.dtype), table.kept_unmerged, table.kept_merged,
      table.kept_at_target);
  for (const std::string& note : table.notes) {
    text += note + "\n";
  }
  if (table.plan.groups.empty()) {
    return text;
  }
  text += fmt::format(
      "{}\nweights grow by about {:.1f} MiB (--factor-dtype auto); converting takes about {:.1f} "
      "GiB of memory and {:.0f} s of factorisation on two cores\n",
      to_text(table.payback), mebibytes(table.weights_growth_bytes),
      mebibytes(table.peak_memory_bytes) / 1024, table.seconds);
  return text;
}

void print_plan(const ModelConfig& config, const ConvertSettings& settings, bool force, bool json) {
  const Method& method = find_method(settings.method);
  if (method.plan_text != nullptr && why_not_factorised(config).empty()) {
    std::fputs(method.plan_text(config, settings, force, json).c_str(), stdout);
    return;
  }
  const PlanTable table = plan_table(config, settings, force);
  std::fputs(json ? dump_json(to_json(table)).c_str() : to_text(table).c_str(), stdout);
}

}  // namespace kvc
