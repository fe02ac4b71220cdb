// MiniCache (arXiv 2405.14366): from the middle layer up, pairs of adjacent layers share the directions of a
// prompt's keys and values.
#include "convert/methods/methods.h"
#include "convert/pair_settings.h"
#include "convert/paired_row.h"
#include "convert/plan.h"
#include "core/error.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

void apply_minicache_preset(ConvertSettings& settings) { settings.own<PairSettings>() = {}; }

void leave_settings(ConvertSettings&) {}

// Layers whose windows or RoPE differ are not paired.
std::vector<int> pairs_above(const ModelConfig& config, int first_layer) {
  std::vector<int> pairs;
  for (int layer = first_layer; layer + 1 < config.num_layers; ++layer) {
    if (config.same_kind(layer, layer + 1)) {
      pairs.push_back(layer);
      ++layer;
    }
  }
  return pairs;
}

KvPlan plan_minicache(const PlanRequest& request) {
  const auto& [config, settings, force, scores] = request;
  const std::vector<int> pairs = pairs_above(config, config.num_layers / 2);
  KVC_CHECK(!pairs.empty(),
            "--method minicache: no two adjacent layers from layer {} up, of {}, have the same "
            "window and RoPE; use another method (--method coded)",
            config.num_layers / 2, config.num_layers);
  KvPlan plan = plain_plan(config);
  plan.method = settings.method;
  plan.key_norm = config.arch->qk_norm != QkNorm::kNone;
  for (const int layer : pairs) {
    plan.layers[static_cast<std::size_t>(layer)] = KvSource::kPaired;
    plan.layers[static_cast<std::size_t>(layer) + 1] = KvSource::kPaired;
  }
  const PairSettings& pairing = settings.own<PairSettings>();
  plan.paired = PairedLayers{.first_layers = pairs,
                             .position = pairing.position,
                             .retained = pairing.retained,
                             .retains_similar = pairing.retention == PairRetention::kInverted};
  plan.policy.target_kept_ratio =
      kept_range(plan, plan_context(config, settings), planned_dtype(config, settings)).highest;
  return plan;
}

// Nothing is fitted.
void convert_minicache(ConversionJob&) {}

}  // namespace

const Method kMiniCache = {.name = "minicache",
                           .options = {pair_options},
                           .apply_paper_preset = apply_minicache_preset,
                           .fix_settings = leave_settings,
                           .make_plan = plan_minicache,
                           .convert = convert_minicache,
                           .fill_table = fill_paired_table};

}  // namespace kvc
