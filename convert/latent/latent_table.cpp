#include "convert/latent/latent_plan.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "convert/plan.h"
#include "core/kv_plan.h"
#include "model/tensor_names.h"

namespace kvc {
namespace {

constexpr std::int64_t kFloatBytes = 4;  // float32
constexpr std::int64_t kDoubleBytes = 8;

// Parameters of a group's layers, experts included.
std::int64_t weights_of(const ModelConfig& config, const LatentGroup& group) {
  std::int64_t parameters = 0;
  for (int layer = group.first_layer; layer < group.first_layer + group.num_layers; ++layer) {
    parameters += num_parameters(layer_tensors(config, layer));
  }
  return parameters;
}

std::string window_text(const LayerSpec& layer) {
  return layer.window ? fmt::format("{} tokens", *layer.window) : "none";
}

// Why the layer after the group is not part of it, where it is of another kind.
std::string end_of(const LatentGroup& group, const ModelConfig& config) {
  const int last = group.first_layer + group.num_layers - 1;
  if (last + 1 == config.num_layers || config.same_kind(last, last + 1)) {
    return "";
  }
  const LayerSpec &here = config.layer(last), &next = config.layer(last + 1);
  std::vector<std::string> differences;
  if (here.window != next.window) {
    differences.push_back(fmt::format("window {} -> {}", window_text(here), window_text(next)));
  }
  if (here.rope != next.rope) {
    differences.push_back(here.rope < 0   ? "no RoPE -> RoPE"
                          : next.rope < 0 ? "RoPE -> none"
                                          : "other RoPE");
  }
  return fmt::format("{}", fmt::join(differences, ", "));
}

PlanRow latent_row(const PlanTable& table, const PlanRequest& request, int first_layer) {
  const int index = table.plan.group_of(first_layer);
  const LatentGroup& group = table.plan.groups[static_cast<std::size_t>(index)];
  const TokenBytes bytes = token_bytes(table.plan, index, table.dtype);
  const KeptRange range = group_kept_range(table.plan, index, table.context, table.dtype);
  PlanRow row;
  row.source = KvSource::kLatent;
  row.group = index;
  row.first_layer = group.first_layer;
  row.num_layers = group.num_layers;
  row.rank = group.rank;
  row.ends = group.replaces_projections() || group.num_layers == request.settings.layers_per_group
                 ? ""
                 : end_of(group, request.config);
  row.plain_bytes = bytes.plain;
  row.unmerged_bytes = bytes.unmerged;
  row.merged_bytes = bytes.merged;
  row.kept_unmerged = range.highest;
  row.kept_merged = range.lowest;
  row.kept_at_target = range.lowest + table.unmerged_share * (range.highest - range.lowest);
  row.weights_growth_bytes =
      estimated_group_bytes(table.plan, index, request.config, request.settings);
  return row;
}

}  // namespace

std::int64_t peak_memory(const ModelConfig& config, const KvPlan& plan) {
  std::int64_t peak = 0;
  for (const LatentGroup& group : plan.groups) {
    const std::int64_t rows = group.num_layers * grouped_widths(plan).total();
    const std::int64_t n = std::min(config.hidden_size, rows);
    const std::int64_t factorisation = kDoubleBytes * (2 * rows * config.hidden_size + 6 * n * n +
                                                       config.hidden_size * config.hidden_size);
    const std::int64_t fit = kDoubleBytes * group.rank * (4 * rows + 2 * group.rank) +
                             kFloatBytes * weights_of(config, group);
    peak = std::max({peak, factorisation, fit});
  }
  constexpr std::int64_t kBase = std::int64_t{3} << 29;  // libraries, boundary, activations
  return peak + kBase;
}

double factorisation_seconds(const ModelConfig& config, const KvPlan& plan, bool whitened) {
  constexpr double kEigen = 3.5e-11, kProduct = 1.1e-11;
  double seconds = 0;
  for (const LatentGroup& group : plan.groups) {
    const auto h = static_cast<double>(config.hidden_size);
    const auto rows = static_cast<double>(group.num_layers * grouped_widths(plan).total());
    const auto rank = static_cast<double>(group.rank);
    const double n = std::min(h, rows);
    const double whitening = whitened ? 2 * rows * h * h : 0;
    seconds += kEigen * n * n * n + kProduct * (rows * h * n + 6 * rows * h * rank + whitening);
  }
  return seconds;
}

void add_latent_rows(PlanTable& table, const PlanRequest& request) {
  add_rows(table, request,
           [&](int first_layer, int) { return latent_row(table, request, first_layer); });
}

void fill_principal_table(PlanTable& table, const PlanRequest& request) {
  add_latent_rows(table, request);
  if (table.plan.groups.empty()) {
    return;
  }
  const LatentGroup& group = table.plan.groups.front();
  const KvWidths widths = grouped_widths(table.plan);
  const std::int64_t width = group.num_layers * widths.key;
  table.notes.push_back(
      widths.value == 0
          ? fmt::format("{} directions of {} for the latents of {} layers; rotary keys stay exact",
                        group.rank, width, group.num_layers)
      : group.split_kv ? fmt::format("{} key and {} value directions of {} each for {} layers",
                                     group.key_rank, group.value_rank, width, group.num_layers)
                       : fmt::format("{} directions of {} for the keys and values of {} layers",
                                     group.rank, 2 * width, group.num_layers));
  if (table.plan.request) {
    table.notes.push_back(
        fmt::format("every request stores its directions; they save bytes from {} compressed "
                    "tokens on, and shorter requests stay plain",
                    break_even_tokens(table.plan, table.dtype)));
  }
}

}  // namespace kvc
