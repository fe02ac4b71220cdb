#include "convert/fusion/fusion_row.h"

#include <fmt/format.h>

#include "convert/factor_bytes.h"
#include "core/kv_plan_bytes.h"

namespace kvc {

PlanRow fused_row(const PlanTable& table, const ModelConfig& config, int first_layer,
                  int num_layers) {
  PlanRow row;
  row.source = KvSource::kFused;
  row.first_layer = first_layer;
  row.num_layers = num_layers;
  row.plain_bytes = num_layers * plain_layer_bytes(table.plan, 1, table.dtype);
  row.kept_unmerged = row.kept_merged = row.kept_at_target = 0;
  for (const FusedLayer& layer : table.plan.fused) {
    if (layer.layer >= first_layer && layer.layer < first_layer + num_layers) {
      row.weights_growth_bytes += estimated_fused_bytes(table.plan, layer, config);
    }
  }
  return row;
}

void add_fusion_notes(PlanTable& table, const ConvertSettings& settings) {
  std::size_t reads = 0;
  for (const FusedLayer& layer : table.plan.fused) {
    reads += layer.key_sources.size() + layer.value_sources.size();
  }
  const bool searched = settings.fusion.sources == FusionSources::kSearch;
  table.notes.push_back(fmt::format(
      "{} of {} layers store nothing and read other layers' keys and values{}",
      table.plan.fused.size(), table.plan.num_layers(),
      searched
          ? ", two of each"
          : fmt::format(" ({:.1f} a layer)", static_cast<double>(reads) /
                                                 static_cast<double>(table.plan.fused.size()))));
  table.notes.push_back(fmt::format(
      "layers whose keys or values have an R^2 below {:g} on calibration text are refused{}; only "
      "the conversion can tell",
      settings.fusion.min_r2, settings.fusion.mixed ? " and stay plain" : ""));
}

}  // namespace kvc
