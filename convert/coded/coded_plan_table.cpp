#include "convert/coded/coded_plan_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/coded/block_layout.h"
#include "convert/coded/coded_plan.h"
#include "convert/factor_bytes.h"
#include "convert/latent/kept_range.h"
#include "convert/mebibytes.h"
#include "convert/plan_payback.h"
#include "core/kv_plan_bytes.h"
#include "model/cache_plan.h"
#include "model/tensor_names.h"

namespace kvc {
namespace {

constexpr std::int64_t kFloat = 4, kDouble = 8;

CodedScope scope_of(const CodedBlock& block, const LayerScopes& scopes) {
  return scopes.scopes[static_cast<std::size_t>(block.first_layer)];
}

void add_rows(CodedPlanTable& table, const ModelConfig& config, const LayerScopes& scopes) {
  for (std::size_t index = 0; index < table.plan.coded.size(); ++index) {
    const CodedBlock& block = table.plan.coded[index];
    const std::int64_t n = num_channels(block, config);
    if (table.rows.empty() || table.rows.back().scope != scope_of(block, scopes) ||
        table.rows.back().channels != n) {
      CodedPlanRow& row = table.rows.emplace_back();
      row.scope = scope_of(block, scopes);
      row.first_layer = block.first_layer;
      row.channels = n;
    }
    CodedPlanRow& row = table.rows.back();
    row.num_layers = block.first_layer + block.num_layers - row.first_layer;
    ++row.num_blocks;
    row.plain_bytes += n * bytes_per_element(table.dtype);
    row.coded_bytes += static_cast<double>(block.bits()) / 8 + (block.gain ? 1 : 0);
    row.weights_growth_bytes += estimated_block_bytes(table.plan, static_cast<int>(index));
  }
  double plain = 0, coded = 0;
  for (CodedPlanRow& row : table.rows) {
    row.bits_per_channel = 8 * row.coded_bytes / static_cast<double>(row.num_blocks * row.channels);
    table.weights_growth_bytes += row.weights_growth_bytes;
    plain += static_cast<double>(row.plain_bytes);
    coded += row.coded_bytes;
  }
  table.kept_coded = coded / plain;
}

// The work on a basis, and statistics of `num_tokens` tokens, on two cores.
double conversion_seconds(const ModelConfig& config, const ConvertSettings& settings,
                          const LayerScopes& scopes, std::int64_t num_tokens) {
  constexpr double kEigen = 3.5e-11, kProduct = 1.1e-11, kForward = 2.5e-11;
  const bool gradient = needs_gradient(*settings.cache_metric);
  const auto tokens = static_cast<double>(num_tokens);
  double seconds = 0;
  for (const LayerRun& run : statistics_runs(config, settings, scopes)) {
    const auto width = static_cast<double>(2 * run.num_layers * config.kv_dim());
    seconds +=
        kEigen * width * width * width + kProduct * width * width * tokens * (gradient ? 1.5 : 1);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    seconds += kForward * tokens * (gradient ? 3.5 : 1) *
               static_cast<double>(num_parameters(layer_tensors(config, layer)));
  }
  return seconds;
}

// Statistics of a run of layers and the work on its basis, beside one layer's weights.
void add_estimates(CodedPlanTable& table, const ModelConfig& config,
                   const ConvertSettings& settings, const LayerScopes& scopes) {
  constexpr std::int64_t kBase = std::int64_t{3} << 29;
  std::int64_t widest = 0, parameters = 0;
  for (const LayerRun& run : statistics_runs(config, settings, scopes)) {
    widest = std::max(widest, 2 * run.num_layers * config.kv_dim());
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    parameters = std::max(parameters, num_parameters(layer_tensors(config, layer)));
  }
  for (const CodedBlock& block : table.plan.coded) {
    table.calibration_tokens =
        std::max(table.calibration_tokens, least_calibration_tokens(block, config));
  }
  table.knee = knee_effort(config, settings);
  table.thorough = thorough_effort(config, settings);
  table.seconds = conversion_seconds(config, settings, scopes, table.knee.num_tokens());
  table.thorough_seconds =
      conversion_seconds(config, settings, scopes, table.thorough.num_tokens());
  table.peak_memory_bytes = kBase + 8 * kDouble * widest * widest + 2 * kFloat * parameters;
}

void add_notes(CodedPlanTable& table, const ConvertSettings& settings, const LayerScopes& scopes) {
  if (!scopes.reason.empty()) {
    table.notes.push_back(scopes.reason);
  }
  table.notes.push_back(fmt::format(
      "of {} tokens {} stay exact (the first {}, the last {} and those short of a block of {}); a "
      "coded token keeps {:.4f} of its bytes",
      table.context, table.exact_tokens, settings.sink_tokens, settings.window_tokens,
      kQuantisedTokens, table.kept_coded));
  if (table.kept_at_context + 0.005 < settings.kept_ratio) {
    table.notes.push_back(
        fmt::format("--kept-ratio {} is more than 8 bits for every coefficient take: all get 8",
                    settings.kept_ratio));
  }
}

Json row_json(const CodedPlanRow& row) {
  return {{"scope", to_string(row.scope)},
          {"first_layer", row.first_layer},
          {"num_layers", row.num_layers},
          {"num_blocks", row.num_blocks},
          {"channels", row.channels},
          {"plain_bytes_per_token", row.plain_bytes},
          {"coded_bytes_per_token", row.coded_bytes},
          {"bits_per_channel", row.bits_per_channel},
          {"weights_growth_bytes", row.weights_growth_bytes}};
}

}  // namespace

CodedPlanTable coded_plan_table(const ModelConfig& config, const ConvertSettings& settings,
                                bool force) {
  CodedPlanTable table;
  const LayerScopes scopes = choose_scopes(config, settings);
  table.plan = make_plan(config, settings, force);
  table.dtype = cache_dtype(config);
  table.context = plan_context(config, settings);
  table.exact_tokens = table.context - coded_tokens(table.plan, table.context);
  table.kept_at_context = coded_kept_ratio(config, table.plan, table.context);
  add_rows(table, config, scopes);
  table.payback = estimated_payback(table.plan, config, settings);
  add_estimates(table, config, settings, scopes);
  add_notes(table, settings, scopes);
  return table;
}

Json to_json(const CodedPlanTable& table) {
  Json json;
  json["plan"] = to_json(table.plan);
  json["kv_dtype"] = to_string(table.dtype);
  json["context"] = table.context;
  json["exact_tokens"] = table.exact_tokens;
  json["rows"] = Json::array();
  for (const CodedPlanRow& row : table.rows) {
    json["rows"].push_back(row_json(row));
  }
  json["kept_ratio_coded"] = table.kept_coded;
  json["kept_ratio_at_target"] = table.kept_at_context;
  json["weights_growth_bytes"] = table.weights_growth_bytes;
  json["payback"] = to_json(table.payback);
  json["peak_memory_bytes"] = table.peak_memory_bytes;
  json["least_calibration_tokens"] = table.calibration_tokens;
  json["seconds"] = table.seconds;
  json["thorough_seconds"] = table.thorough_seconds;
  json["num_calibration_tokens"] = table.knee.num_tokens();
  json["thorough_calibration_tokens"] = table.thorough.num_tokens();
  json["notes"] = table.notes;
  return json;
}

std::string to_text(const CodedPlanTable& table) {
  std::string text = fmt::format("{:>6}  {:>7}  {:>6}  {:>8}  {:^22}  {:>8}  {:>9}\n", "", "", "",
                                 "channels", "bytes per token", "bits per", "weights");
  text += fmt::format("{:>6}  {:>7}  {:>6}  {:>8}  {:>10}  {:>10}  {:>8}  {:>9}\n", "scope",
                      "layers", "blocks", "of each", "plain", "coded", "channel", "+MiB");
  for (const CodedPlanRow& row : table.rows) {
    const std::string layers =
        row.num_layers == 1
            ? fmt::format("{}", row.first_layer)
            : fmt::format("{}-{}", row.first_layer, row.first_layer + row.num_layers - 1);
    text += fmt::format("{:>6}  {:>7}  {:>6}  {:>8}  {:>10}  {:>10.1f}  {:>8.3f}  {:>9.1f}\n",
                        to_string(row.scope), layers, row.num_blocks, row.channels, row.plain_bytes,
                        row.coded_bytes, row.bits_per_channel, mebibytes(row.weights_growth_bytes));
  }
  text += fmt::format("whole cache of {} tokens ({}): kept_ratio {:.3f}\n", table.context,
                      to_string(table.dtype), table.kept_at_context);
  for (const std::string& note : table.notes) {
    text += note + "\n";
  }
  text += fmt::format(
      "{}\nweights grow by about {:.1f} MiB (--factor-dtype auto); calibrating needs at least {} "
      "tokens; converting takes about {:.1f} GiB of memory and on two cores {:.0f} s with the {} "
      "calibration tokens of the default, {:.0f} s with the {} of --thorough, beside what writing "
      "text takes\n",
      to_text(table.payback), mebibytes(table.weights_growth_bytes), table.calibration_tokens,
      mebibytes(table.peak_memory_bytes) / 1024, table.seconds, table.knee.num_tokens(),
      table.thorough_seconds, table.thorough.num_tokens());
  return text;
}

}  // namespace kvc
