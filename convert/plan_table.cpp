#include "convert/plan_table.h"

#include <fmt/ranges.h>

#include "convert/factor_bytes.h"
#include "convert/fusion/fusion_row.h"
#include "convert/latent/group_cost.h"
#include "convert/latent/kept_range.h"
#include "convert/methods/methods.h"
#include "convert/paired_row.h"
#include "convert/plan_payback.h"
#include "core/kv_plan_bytes.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

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

PlanRow group_row(const PlanTable& table, int index, const ModelConfig& config,
                  const ConvertSettings& settings) {
  const LatentGroup& group = table.plan.groups[static_cast<std::size_t>(index)];
  const TokenBytes bytes = token_bytes(table.plan, index, table.dtype);
  const KeptRange range = group_kept_range(table.plan, index, table.context, table.dtype);
  PlanRow row;
  row.source = KvSource::kLatent;
  row.group = index;
  row.first_layer = group.first_layer;
  row.num_layers = group.num_layers;
  row.rank = group.rank;
  row.ends = group.replaces_projections() || group.num_layers == settings.layers_per_group
                 ? ""
                 : end_of(group, config);
  row.plain_bytes = bytes.plain;
  row.unmerged_bytes = bytes.unmerged;
  row.merged_bytes = bytes.merged;
  row.kept_unmerged = range.highest;
  row.kept_merged = range.lowest;
  row.kept_at_target = range.lowest + table.unmerged_share * (range.highest - range.lowest);
  row.weights_growth_bytes = estimated_group_bytes(table.plan, index, config, settings);
  return row;
}

PlanRow plain_row(const PlanTable& table, int first_layer, int num_layers) {
  PlanRow row;
  row.first_layer = first_layer;
  row.num_layers = num_layers;
  row.plain_bytes = num_layers * plain_layer_bytes(table.plan, 1, table.dtype);
  row.unmerged_bytes = row.merged_bytes = row.plain_bytes;
  return row;
}

void add_rows(PlanTable& table, const ModelConfig& config, const ConvertSettings& settings) {
  const auto source_of = [&](int layer) {
    return table.plan.layers[static_cast<std::size_t>(layer)];
  };
  for (int layer = 0; layer < table.plan.num_layers();) {
    const KvSource source = source_of(layer);
    int count = 1;
    while (layer + count < table.plan.num_layers() && source_of(layer + count) == source) {
      ++count;
    }
    table.rows.push_back(source == KvSource::kLatent
                             ? group_row(table, table.plan.group_of(layer), config, settings)
                         : source == KvSource::kFused  ? fused_row(table, config, layer, count)
                         : source == KvSource::kPaired ? paired_row(table, layer)
                                                       : plain_row(table, layer, count));
    layer += table.rows.back().num_layers;
    table.weights_growth_bytes += table.rows.back().weights_growth_bytes;
  }
}

void add_principal_notes(PlanTable& table, const LatentGroup& group) {
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
        fmt::format("every request keeps its directions; they save bytes from {} compressed tokens "
                    "on, and below that it stays plain",
                    break_even_tokens(table.plan, table.dtype)));
  }
}

void add_notes(PlanTable& table, const ModelConfig& config, const ConvertSettings& settings) {
  if (!table.plan.fused.empty()) {
    add_fusion_notes(table, settings);
  }
  if (table.plan.paired) {
    add_paired_notes(table);
  }
  if (table.plan.groups.empty()) {
    return;
  }
  const LatentGroup& group = table.plan.groups.front();
  if (group.basis != LatentBasis::kWeights) {
    add_principal_notes(table, group);
    return;
  }
  if (group.split_kv) {
    table.notes.push_back(
        fmt::format("latents of {} + {} channels replace {} + {} of keys and values in every layer",
                    group.key_rank, group.value_rank, config.kv_dim(), config.kv_dim()));
    return;
  }
  const double width = settings.rank * static_cast<double>(config.hidden_size);
  const double plain = 2 * static_cast<double>(config.kv_dim());
  table.notes.push_back(
      fmt::format("a latent of {:g} x hidden_size is {:.2f}x a plain layer's KV ({:.0f} channels "
                  "against {:.0f})",
                  settings.rank, width / plain, width, plain));
  if (settings.merge == MergeRule::kNone) {
    table.notes.push_back("nothing is merged: every layer keeps a latent per token");
    return;
  }
  table.notes.push_back(
      fmt::format("merging {} layers into one latent brings it to {:.2f}x their plain KV",
                  group.num_layers, width / (plain * group.num_layers)));
  table.notes.push_back(fmt::format(
      "for kept_ratio {:g} at {} tokens, {:.1f} % of the tokens outside sinks and window stay "
      "unmerged, as {}",
      settings.kept_ratio, table.context, 100 * table.unmerged_share,
      table.plan.policy.unmerged == UnmergedForm::kPlain ? "plain KV" : "one latent per layer"));
}

// The table of a model that no method applies to: what its own cache costs, and the reason.
PlanTable own_cache_table(const ModelConfig& config, const ConvertSettings& settings) {
  PlanTable table;
  table.plan = plain_plan(config);
  table.dtype = cache_dtype(config);
  table.context = plan_context(config, settings);
  add_rows(table, config, settings);
  table.notes.push_back(
      fmt::format("the model's own cache takes {} bytes per token in all layers; kept_ratio is "
                  "relative to it",
                  original_bytes(table.plan, 1, table.dtype)));
  table.notes.push_back(
      fmt::format("method {} does not apply: {}", settings.method, why_not_factorised(config)));
  return table;
}

// Makes ratios of a cache of the table's type ratios of the model's own.
void scale_ratios(double scale, PlanTable& table) {
  for (PlanRow& row : table.rows) {
    row.kept_unmerged *= scale;
    row.kept_merged *= scale;
    row.kept_at_target *= scale;
  }
  table.kept_unmerged *= scale;
  table.kept_merged *= scale;
  table.kept_at_target *= scale;
}

}  // namespace

PlanTable plan_table(const ModelConfig& config, const ConvertSettings& settings, bool force) {
  if (config.mla && !find_method(settings.method).takes_own_latents) {
    return own_cache_table(config, settings);
  }
  PlanTable table;
  table.plan = make_plan(config, settings, force);
  table.dtype = planned_dtype(config, settings);
  table.context = plan_context(config, settings);
  const KeptRange range = kept_range(table.plan, table.context, table.dtype);
  table.unmerged_share = unmerged_share(table.plan.policy.target_kept_ratio, range);
  table.kept_unmerged = range.highest;
  table.kept_merged = range.lowest;
  table.kept_at_target = planned_kept_ratio(table.plan, table.context, table.dtype);
  add_rows(table, config, settings);
  scale_ratios(planned_type_scale(table.plan, config, settings), table);
  table.payback = estimated_payback(table.plan, config, settings);
  table.peak_memory_bytes = peak_memory(config, table.plan);
  table.seconds = factorisation_seconds(config, settings, table.plan);
  add_notes(table, config, settings);
  return table;
}

}  // namespace kvc
