#include "convert/coded/coded_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/coded/block_layout.h"
#include "convert/defaults.h"
#include "convert/plan.h"
#include "model/cache_plan.h"
#include "model/tensor_names.h"

namespace kvc {
namespace {

constexpr std::int64_t kFloat = 4, kDouble = 8;

// The work on a basis, and statistics, on two cores.
PlannedWork planned_work(const PlanRequest& request, const std::vector<LayerRun>& runs,
                         const CalibrationEffort& effort) {
  constexpr double kEigen = 3.5e-11, kProduct = 1.1e-11, kForward = 2.5e-11;
  const ModelConfig& config = request.config;
  const bool gradient = needs_gradient(*request.settings.cache_metric);
  const auto tokens = static_cast<double>(effort.num_tokens());
  double seconds = 0;
  for (const LayerRun& run : runs) {
    const auto width = static_cast<double>(2 * run.num_layers * config.kv_dim());
    seconds +=
        kEigen * width * width * width + kProduct * width * width * tokens * (gradient ? 1.5 : 1);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    seconds += kForward * tokens * (gradient ? 3.5 : 1) *
               static_cast<double>(num_parameters(layer_tensors(config, layer)));
  }
  return {effort.num_tokens(), seconds};
}

// Statistics of a run of layers and the work on its basis, beside one layer's weights.
void add_estimates(PlanTable& table, const PlanRequest& request) {
  constexpr std::int64_t kBase = std::int64_t{3} << 29;
  const ModelConfig& config = request.config;
  const ConvertSettings& settings = request.settings;
  const std::vector<LayerRun> runs =
      layer_runs(config, statistics_layers(settings, table.plan.coded));
  std::int64_t widest = 0, parameters = 0;
  for (const LayerRun& run : runs) {
    widest = std::max(widest, 2 * run.num_layers * config.kv_dim());
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    parameters = std::max(parameters, num_parameters(layer_tensors(config, layer)));
  }
  for (const CodedBlock& block : table.plan.coded) {
    table.calibration_tokens =
        std::max(table.calibration_tokens, least_calibration_tokens(block, config));
  }
  table.chosen = planned_work(request, runs, choose_effort(config, settings, request.effort));
  table.thorough = planned_work(request, runs, thorough_effort(config, settings));
  table.peak_memory_bytes = kBase + 8 * kDouble * widest * widest + 2 * kFloat * parameters;
}

// What `table` keeps at most: --gain auto adds gains where data make them pay.
double kept_with_gains(const PlanTable& table, const PlanRequest& request) {
  KvPlan plan = table.plan;
  for (CodedBlock& block : plan.coded) {
    block.gain = true;
  }
  return coded_kept_ratio(request.config, plan, table.context);
}

void add_notes(PlanTable& table, const PlanRequest& request, const std::string& reason) {
  const ConvertSettings& settings = request.settings;
  if (!reason.empty()) {
    table.notes.push_back(reason);
  }
  table.notes.push_back(
      fmt::format("in a cache of {} tokens, {}; a coded token takes {:.4f} of its original bytes",
                  table.context, exact_tokens_text(table.plan, table.context), table.kept_coded));
  std::string capped = capped_bits_note(table.kept_at_target, settings);
  if (!capped.empty()) {
    if (settings.own<CodedSettings>().gain == GainChoice::kAuto) {
      capped += fmt::format(", or up to {:.3f} with gains, which the calibration text decides",
                            kept_with_gains(table, request));
    }
    table.notes.push_back(capped);
  }
}

// Adjacent layers whose blocks are alike.
PlanRow coded_row(const PlanTable& table, const ModelConfig& config, const LayerScopes& scopes,
                  int first_layer) {
  const auto at = [](int layer) { return static_cast<std::size_t>(layer); };
  const CodedScope scope = scopes.scopes[at(first_layer)];
  const CodedForm form = scopes.forms[at(first_layer)];
  PlanRow row;
  row.source = KvSource::kCoded;
  row.first_layer = first_layer;
  row.scope = to_string(scope);
  row.form = to_string(form);
  std::int64_t all_channels = 0;
  for (std::size_t index = 0; index < table.plan.coded.size(); ++index) {
    const CodedBlock& block = table.plan.coded[index];
    const std::int64_t channels = num_channels(block, config);
    if (block.first_layer < first_layer) {
      continue;
    }
    row.channels = row.num_blocks == 0 ? channels : row.channels;
    const bool is_next = block.first_layer >= first_layer + row.num_layers;
    if (is_next && (scopes.scopes[at(block.first_layer)] != scope ||
                    scopes.forms[at(block.first_layer)] != form || channels != row.channels)) {
      break;
    }
    all_channels += channels;
    row.num_layers = block.first_layer + block.num_layers - first_layer;
    ++row.num_blocks;
    row.key_products = std::max(row.key_products, key_products(block, config));
    row.plain_bytes += channels * bytes_per_element(cache_dtype(config));
    row.coded_bytes += static_cast<double>(block.bits()) / 8 + (block.gain ? 1 : 0);
    row.weights_growth_bytes += estimated_block_bytes(table.plan, static_cast<int>(index));
  }
  row.bits_per_channel = 8 * row.coded_bytes / static_cast<double>(all_channels);
  return row;
}

}  // namespace

std::string capped_bits_note(double kept_ratio, const ConvertSettings& settings) {
  constexpr double kRounding = 0.005;
  return kept_ratio + kRounding >= settings.kept_ratio
             ? ""
             : fmt::format(
                   "--kept-ratio {} allows more than 8 bits per coefficient; all coefficients get "
                   "8, and the cache keeps {:.3f}",
                   settings.kept_ratio, kept_ratio);
}

void fill_coded_table(PlanTable& table, const PlanRequest& request) {
  const LayerScopes scopes = choose_scopes(request.config, request.settings);
  add_rows(table, request, [&](int first_layer, int) {
    return coded_row(table, request.config, scopes, first_layer);
  });
  table.dtype = cache_dtype(request.config);
  table.exact_tokens = table.context - tokens_in_blocks(table.plan, table.context);
  table.kept_at_target = coded_kept_ratio(request.config, table.plan, table.context);
  double plain = 0, coded = 0;
  for (const PlanRow& row : table.rows) {
    plain += static_cast<double>(row.plain_bytes);
    coded += row.coded_bytes;
  }
  table.kept_coded = coded / plain;
  add_estimates(table, request);
  add_notes(table, request, scopes.reason);
}

}  // namespace kvc
