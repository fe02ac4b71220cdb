#include "convert/plan_table.h"

#include <fmt/format.h>

#include <cstdlib>

#include "convert/latent/latent_plan.h"
#include "convert/methods/methods.h"
#include "convert/plan.h"
#include "core/kv_plan_json.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

PlanRow plain_row(const PlanTable& table, int first_layer, int num_layers) {
  PlanRow row;
  row.first_layer = first_layer;
  row.num_layers = num_layers;
  row.plain_bytes = num_layers * plain_layer_bytes(table.plan, 1, table.dtype);
  row.unmerged_bytes = row.merged_bytes = row.plain_bytes;
  return row;
}

// The table of a model that no method applies to: what its own cache costs, and the reason.
PlanTable own_cache_table(const Method& method, const PlanRequest& request) {
  const ModelConfig& config = request.config;
  PlanTable table;
  table.plan = plain_plan(config);
  table.dtype = cache_dtype(config);
  table.context = plan_context(config, request.settings);
  add_rows(table, request, {});
  table.notes.push_back(
      fmt::format("the model's own cache takes {} bytes per token in all layers; kept_ratio is "
                  "relative to it",
                  original_bytes(table.plan, 1, table.dtype)));
  table.notes.push_back(
      fmt::format("method {} does not apply: {}", method.name, why_not_factorised(config)));
  return table;
}

std::string row_text(const PlanRow& row, bool is_coded) {
  const std::string layers =
      row.num_layers == 1
          ? fmt::format("{}", row.first_layer)
          : fmt::format("{}-{}", row.first_layer, row.first_layer + row.num_layers - 1);
  const double growth = mebibytes(row.weights_growth_bytes);
  if (is_coded) {
    return fmt::format(
        "{:>6}  {:>8}  {:>7}  {:>6}  {:>8}  {:>10}  {:>10.1f}  {:>8.3f}  {:>8}  {:>9.1f}\n",
        row.scope, row.form, layers, row.num_blocks, row.channels, row.plain_bytes, row.coded_bytes,
        row.bits_per_channel, row.form == "auto" ? "-" : std::to_string(row.key_products), growth);
  }
  const bool is_group = row.group >= 0;
  return fmt::format(
      "{:>5}  {:>7}  {:>6}  {:>9}  {:>9}  {:>9}  {:>8.3f}  {:>8.3f}  {:>8.3f}  {:>9.1f}{}\n",
      is_group ? std::to_string(row.group) : to_string(row.source), layers,
      is_group ? std::to_string(row.rank) : "-", row.plain_bytes, row.unmerged_bytes,
      row.merged_bytes, row.kept_unmerged, row.kept_merged, row.kept_at_target, growth,
      row.ends.empty() ? "" : "  ends: " + row.ends);
}

std::string heading(bool is_coded) {
  return is_coded
             ? fmt::format("{:>6}  {:>8}  {:>7}  {:>6}  {:>8}  {:^22}  {:>8}  {:>8}  {:>9}\n", "",
                           "", "", "", "channels", "bytes per token", "bits per", "products",
                           "weights") +
                   fmt::format(
                       "{:>6}  {:>8}  {:>7}  {:>6}  {:>8}  {:>10}  {:>10}  {:>8}  {:>8}  "
                       "{:>9}\n",
                       "scope", "form", "layers", "blocks", "of each", "plain", "coded", "channel",
                       "per key", "+MiB")
             : fmt::format("{:>5}  {:>7}  {:>6}  {:^31}  {:^28}  {:>9}\n", "", "", "",
                           "bytes per token", "kept_ratio", "weights") +
                   fmt::format(
                       "{:>5}  {:>7}  {:>6}  {:>9}  {:>9}  {:>9}  {:>8}  {:>8}  {:>8}  {:>9}\n",
                       "group", "layers", "rank", "plain", "unmerged", "merged", "unmerged",
                       "merged", "target", "+MiB");
}

Json row_json(const PlanRow& row, bool is_coded) {
  if (is_coded) {
    return {{"scope", row.scope},
            {"form", row.form},
            {"first_layer", row.first_layer},
            {"num_layers", row.num_layers},
            {"num_blocks", row.num_blocks},
            {"channels", row.channels},
            {"plain_bytes_per_token", row.plain_bytes},
            {"coded_bytes_per_token", row.coded_bytes},
            {"bits_per_channel", row.bits_per_channel},
            {"products_per_key", row.form == "auto" ? Json(nullptr) : Json(row.key_products)},
            {"weights_growth_bytes", row.weights_growth_bytes}};
  }
  return {{"group", row.group < 0 ? Json(nullptr) : Json(row.group)},
          {"source", to_string(row.source)},
          {"first_layer", row.first_layer},
          {"num_layers", row.num_layers},
          {"rank", row.rank},
          {"plain_bytes_per_token", row.plain_bytes},
          {"unmerged_bytes_per_token", row.unmerged_bytes},
          {"merged_bytes_per_token", row.merged_bytes},
          {"kept_ratio_unmerged", row.kept_unmerged},
          {"kept_ratio_merged", row.kept_merged},
          {"kept_ratio_at_target", row.kept_at_target},
          {"weights_growth_bytes", row.weights_growth_bytes},
          {"ends", row.ends.empty() ? Json(nullptr) : Json(row.ends)}};
}

}  // namespace

void add_rows(PlanTable& table, const PlanRequest& request, const MakeRow& make_row) {
  const double scale = planned_type_scale(table.plan, request.config, request.settings);
  const std::vector<KvSource>& sources = table.plan.layers;
  for (std::size_t layer = 0; layer < sources.size();) {
    std::size_t end = layer + 1;
    while (end < sources.size() && sources[end] == sources[layer]) {
      ++end;
    }
    const int first = static_cast<int>(layer), count = static_cast<int>(end - layer);
    PlanRow row = sources[layer] == KvSource::kPlain ? plain_row(table, first, count)
                                                     : make_row(first, count);
    row.kept_unmerged *= scale;
    row.kept_merged *= scale;
    row.kept_at_target *= scale;
    table.weights_growth_bytes += row.weights_growth_bytes;
    layer += static_cast<std::size_t>(row.num_layers);
    table.rows.push_back(std::move(row));
  }
}

PlanTable plan_table(const ModelConfig& config, const ConvertSettings& settings, bool force,
                     const CalibrationRequest& effort) {
  const Method& method = find_method(settings.method);
  const PlanRequest request{config, settings, force, nullptr, effort};
  if (config.mla && !method.takes_own_latents) {
    return own_cache_table(method, request);
  }
  PlanTable table;
  table.plan = make_plan(config, settings, force);
  table.dtype = planned_dtype(config, settings);
  table.context = plan_context(config, settings);
  const KeptRange range = kept_range(table.plan, table.context, table.dtype);
  table.unmerged_share = unmerged_share(table.plan.compression.target_kept_ratio, range);
  const double scale = planned_type_scale(table.plan, config, settings);
  table.kept_unmerged = scale * range.highest;
  table.kept_merged = scale * range.lowest;
  table.kept_at_target = scale * planned_kept_ratio(table.plan, table.context, table.dtype);
  table.payback = estimated_payback(table.plan, config, settings);
  table.peak_memory_bytes = peak_memory(config, table.plan);
  table.seconds = factorisation_seconds(config, table.plan, needs_calibration(settings));
  method.fill_table(table, request);
  if (const std::string note = late_payback_note(table.payback, tokens_in_flight(config, settings));
      !note.empty() && (table.is_coded() || !table.plan.groups.empty())) {
    table.notes.push_back(note);
  }
  return table;
}

Json to_json(const PlanTable& table) {
  const bool is_coded = table.is_coded();
  Json rows = Json::array();
  for (const PlanRow& row : table.rows) {
    rows.push_back(row_json(row, is_coded));
  }
  Json json = {{"plan", to_json(table.plan)},
               {"kv_dtype", to_string(table.dtype)},
               {"context", table.context}};
  if (is_coded) {
    json["exact_tokens"] = table.exact_tokens;
    json["rows"] = std::move(rows);
    json["kept_ratio_coded"] = table.kept_coded;
  } else {
    json["groups"] = std::move(rows);
    json["kept_ratio_unmerged"] = table.kept_unmerged;
    json["kept_ratio_merged"] = table.kept_merged;
  }
  json["kept_ratio_at_target"] = table.kept_at_target;
  if (!is_coded) {
    json["unmerged_share"] = table.unmerged_share;
  }
  json["weights_growth_bytes"] = table.weights_growth_bytes;
  json["payback"] = to_json(table.payback);
  json["peak_memory_bytes"] = table.peak_memory_bytes;
  if (is_coded) {
    json["least_calibration_tokens"] = table.calibration_tokens;
    json["seconds"] = table.chosen.seconds;
    json["thorough_seconds"] = table.thorough.seconds;
    json["num_calibration_tokens"] = table.chosen.num_tokens;
    json["thorough_calibration_tokens"] = table.thorough.num_tokens;
  } else {
    json["factorisation_seconds"] = table.seconds;
  }
  json["notes"] = table.notes;
  return json;
}

std::string to_text(const PlanTable& table) {
  const bool is_coded = table.is_coded();
  std::string text = heading(is_coded);
  for (const PlanRow& row : table.rows) {
    text += row_text(row, is_coded);
  }
  text += fmt::format("whole cache of {} tokens ({}): kept_ratio ", table.context,
                      to_string(table.dtype));
  text += is_coded ? fmt::format("{:.3f}\n", table.kept_at_target)
                   : fmt::format("{:.3f} unmerged, {:.3f} merged, {:.3f} at the target\n",
                                 table.kept_unmerged, table.kept_merged, table.kept_at_target);
  for (const std::string& note : table.notes) {
    text += note + "\n";
  }
  if (!is_coded && table.plan.groups.empty()) {
    return text;
  }
  text += fmt::format("{}\nweights {} by about {:.1f} MiB (--factor-dtype auto); ",
                      to_text(table.payback), table.weights_growth_bytes < 0 ? "shrink" : "grow",
                      mebibytes(std::abs(table.weights_growth_bytes)));
  const double gibibytes = mebibytes(table.peak_memory_bytes) / 1024;
  text +=
      is_coded
          ? fmt::format(
                "calibrating needs at least {} tokens; converting takes about {:.1f} GiB of "
                "memory and on two cores {:.0f} s with {} calibration tokens{}; sampling the "
                "calibration text takes additional time\n",
                table.calibration_tokens, gibibytes, table.chosen.seconds, table.chosen.num_tokens,
                table.chosen.num_tokens == table.thorough.num_tokens
                    ? ""
                    : fmt::format(", {:.0f} s with the {} of --thorough", table.thorough.seconds,
                                  table.thorough.num_tokens))
          : fmt::format(
                "converting takes about {:.1f} GiB of memory and {:.0f} s of factorisation on "
                "two cores\n",
                gibibytes, table.seconds);
  return text;
}

}  // namespace kvc
