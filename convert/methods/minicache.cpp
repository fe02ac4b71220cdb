// MiniCache (arXiv 2405.14366): from the middle layer up, pairs of adjacent layers share the directions of a
// prompt's keys and values.
#include "convert/latent/kept_range.h"
#include "convert/methods/methods.h"
#include "core/error.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

void apply_minicache_preset(ConvertSettings& settings) { settings.pairing = {}; }

// What is for latent groups alone.
void fix_minicache(ConvertSettings& settings) {
  settings.factor = Factor::kPlain;
  settings.merge = MergeRule::kNone;
  settings.rank_allocation = RankAllocation::kUniform;
  check_ranges(settings.pairing);
}

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

KvPlan plan_minicache(const ModelConfig& config, const ConvertSettings& settings, bool,
                      const std::vector<double>*) {
  const std::vector<int> pairs = pairs_above(config, config.num_layers / 2);
  KVC_CHECK(!pairs.empty(),
            "--method minicache: from layer {} up (of {}), no two adjacent layers have the same "
            "window and RoPE; use another method (--method coded)",
            config.num_layers / 2, config.num_layers);
  KvPlan plan = plain_plan(config);
  plan.method = settings.method;
  plan.key_norm = config.arch->qk_norm != QkNorm::kNone;
  for (const int layer : pairs) {
    plan.layers[static_cast<std::size_t>(layer)] = KvSource::kPaired;
    plan.layers[static_cast<std::size_t>(layer) + 1] = KvSource::kPaired;
  }
  const PairSettings& pairing = settings.pairing;
  plan.paired = PairedLayers{.first_layers = pairs,
                             .position = pairing.position,
                             .retained = pairing.retained,
                             .retains_similar = pairing.retention == PairRetention::kInverted};
  plan.policy.target_kept_ratio =
      kept_range(plan, plan_context(config, settings), planned_dtype(config, settings)).highest;
  return plan;
}

// Nothing is fitted.
std::vector<GroupReport> convert_minicache(ConversionJob&) { return {}; }

}  // namespace

const Method kMiniCache = {"minicache", apply_minicache_preset, fix_minicache, plan_minicache,
                           convert_minicache};

}  // namespace kvc
