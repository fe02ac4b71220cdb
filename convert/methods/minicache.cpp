// MiniCache (arXiv 2405.14366): from the middle layer up, pairs of adjacent layers share the directions of a
// prompt's keys and values.
#include <fmt/format.h>

#include "convert/methods/methods.h"
#include "convert/plan.h"
#include "core/error.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

// Prompt tokens that keep the vectors of both layers.
//   different  those whose layers differ most, as in the paper's text
//   inverted   those whose layers differ least, as in published implementations
enum class PairRetention { kDifferent, kInverted };

struct PairSettings {
  PairRetention retention = PairRetention::kDifferent;
  double position = 0.6;  // of the shared direction between the lower (0) and the upper layer's (1)
  double retained = 0.05;  // gamma
};

constexpr EnumName<PairRetention> kRetentions[] = {{PairRetention::kDifferent, "different"},
                                                   {PairRetention::kInverted, "inverted"}};

bool is_part(double share) { return share >= 0 && share <= 1; }

Options pair_options(ConvertSettings& settings) {
  PairSettings& own = settings.own<PairSettings>();
  Options options;
  options.add("--minicache", "pairing/retention", own.retention, kRetentions,
              "choice of retained tokens",
              "Retain the tokens whose layers differ most (different, default) or least "
              "(inverted)");
  options.add("--minicache-position", "pairing/position", own.position,
              "Shared direction between the lower layer's (0) and the upper one's (1)", "0 to 1",
              is_part);
  options.add("--minicache-retained", "pairing/retained", own.retained,
              "Retained tokens: share of the range of angles, and largest share of all tokens",
              "0 to 1", is_part);
  return options;
}

void apply_minicache_preset(ConvertSettings& settings) { settings.own<PairSettings>() = {}; }

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
  const ModelConfig& config = request.config;
  const ConvertSettings& settings = request.settings;
  const std::vector<int> pairs = pairs_above(config, config.num_layers / 2);
  KVC_CHECK(!pairs.empty(),
            "--method minicache: from layer {} up (of {}), no two adjacent layers have the same "
            "window and RoPE; use another method (--method coded)",
            config.num_layers / 2, config.num_layers);
  KvPlan plan = base_plan(config, settings);
  for (const int layer : pairs) {
    plan.layers[static_cast<std::size_t>(layer)] = KvSource::kPaired;
    plan.layers[static_cast<std::size_t>(layer) + 1] = KvSource::kPaired;
  }
  const PairSettings& pairing = settings.own<PairSettings>();
  plan.paired = PairedLayers{.first_layers = pairs,
                             .position = pairing.position,
                             .retained = pairing.retained,
                             .retains_similar = pairing.retention == PairRetention::kInverted};
  plan.compression.target_kept_ratio =
      kept_range(plan, plan_context(config, settings), planned_dtype(config, settings)).highest;
  return plan;
}

// Nothing is fitted.
void convert_minicache(ConversionJob&) {}

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

void fill_paired_table(PlanTable& table, const PlanRequest& request) {
  add_rows(table, request, [&](int first_layer, int) { return paired_row(table, first_layer); });
  if (!table.plan.paired) {
    return;
  }
  const PairedLayers& paired = *table.plan.paired;
  table.notes.push_back(
      fmt::format("for a prompt's keys and values, {} pairs of layers store one direction, and a "
                  "norm per layer and KV head; generated tokens stay plain",
                  paired.first_layers.size()));
  table.notes.push_back(
      fmt::format("tokens whose layers differ {} also keep both layers' vectors: at most {:g} % of "
                  "the keys and of the values, which this table counts",
                  paired.retains_similar ? "least" : "most", 100 * paired.retained));
}

}  // namespace

const Method kMiniCache = {.name = "minicache",
                           .options = {pair_options},
                           .apply_paper_preset = apply_minicache_preset,
                           .fix_settings = leave_no_exact_tokens,
                           .make_plan = plan_minicache,
                           .convert = convert_minicache,
                           .fill_table = fill_paired_table};

}  // namespace kvc
