#include "convert/fusion/fusion_plan.h"

#include <cmath>
#include <string>
#include <utility>

#include "convert/plan.h"
#include "core/enum_names.h"
#include "core/error.h"
#include "core/kv_plan_bytes.h"
#include "model/cache_plan.h"
#include "model/fused_kv.h"

namespace kvc {
namespace {

constexpr const char* kWaysOut =
    "use --sources search, which passes over such layers, --mixed to leave this one plain, or "
    "another "
    "number of --storage-layers";

// One sentence where a layer cannot be what the plan says; empty otherwise.
std::string why_not_fused(const ModelConfig& config, const FusedLayer& layer) {
  if (layer.key_sources.empty() || layer.value_sources.empty()) {
    return fmt::format(
        "no storage layer has its RoPE and a window as long; {}",
        "use --mixed to leave this layer plain, or another number of --storage-layers");
  }
  for (const auto* sources : {&layer.key_sources, &layer.value_sources}) {
    for (const int source : *sources) {
      if (!can_read(config, layer.layer, source)) {
        return fmt::format(
            "cannot read the keys and values of layer {}: its RoPE differs or its window is "
            "shorter; {}",
            source, kWaysOut);
      }
    }
  }
  if (layer.form == FusionForm::kFull && config.depends_on_length(layer.layer)) {
    return "its RoPE depends on the length of the text, so that stored keys cannot be turned back "
           "for --fusion matrices; use --fusion vectors";
  }
  return "";
}

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

constexpr EnumName<FusionSources> kSources[] = {{FusionSources::kPaper, "paper"},
                                                {FusionSources::kSearch, "search"},
                                                {FusionSources::kAll, "all"}};
constexpr EnumName<HeadMap> kHeadMaps[] = {{HeadMap::kSame, "same"}, {HeadMap::kSearch, "search"}};
constexpr EnumName<FusionForm> kPairs[] = {{FusionForm::kChannel, "tied"},
                                           {FusionForm::kComplex, "complex"}};
constexpr EnumName<FusionForm> kFusions[] = {{FusionForm::kChannel, "vectors"},
                                             {FusionForm::kFull, "matrices"}};

bool is_rate(double rate) { return std::isfinite(rate) && rate > 0; }

}  // namespace

int storage_layers(const ModelConfig& config, const FusionSettings& settings) {
  const int count =
      settings.storage_layers > 0 ? settings.storage_layers : (config.num_layers + 1) / 2;
  KVC_CHECK(count < config.num_layers,
            "--storage-layers {}: the model has {} layers, so none would be fused; use at most {}",
            count, config.num_layers, config.num_layers - 1);
  return count;
}

KvPlan fused_plan(const PlanRequest& request, std::vector<FusedLayer> fused) {
  const ModelConfig& config = request.config;
  const bool mixed = request.settings.own<FusionSettings>().mixed;
  KvPlan plan = base_plan(config, request.settings);
  for (FusedLayer& layer : fused) {
    const std::string reason = why_not_fused(config, layer);
    if (!reason.empty() && mixed) {
      continue;
    }
    KVC_CHECK(reason.empty(), "layer {}: {}", layer.layer, reason);
    plan.layers[static_cast<std::size_t>(layer.layer)] = KvSource::kFused;
    plan.fused.push_back(std::move(layer));
  }
  KVC_CHECK(
      !plan.fused.empty() || !mixed,
      "--mixed: every layer would stay plain, as none has a source with its RoPE and a window as "
      "long; use another method (--method coded)");
  return plan;
}

std::vector<FusedLayer> upper_layers(const ModelConfig& config, const FusionSettings& settings,
                                     const std::function<FusedLayer(int layer)>& layer_of) {
  std::vector<FusedLayer> layers;
  for (int layer = storage_layers(config, settings); layer < config.num_layers; ++layer) {
    layers.push_back(layer_of(layer));
    layers.back().layer = layer;
  }
  return layers;
}

std::vector<int> readable_sources(const ModelConfig& config, int layer, int num_storage) {
  std::vector<int> sources;
  for (int source = 0; source < num_storage; ++source) {
    if (can_read(config, layer, source)) {
      sources.push_back(source);
    }
  }
  return sources;
}

void fill_fusion_table(PlanTable& table, const PlanRequest& request) {
  const FusionSettings& own = request.settings.own<FusionSettings>();
  add_rows(table, request, [&](int first_layer, int num_layers) {
    return fused_row(table, request.config, first_layer, num_layers);
  });
  if (table.plan.fused.empty()) {
    return;
  }
  std::size_t reads = 0;
  for (const FusedLayer& layer : table.plan.fused) {
    reads += layer.key_sources.size() + layer.value_sources.size();
  }
  const bool searched = own.sources == FusionSources::kSearch;
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
      own.min_r2, own.mixed ? " and stay plain" : ""));
}

Options fusion_options(ConvertSettings& settings) {
  FusionSettings& own = settings.own<FusionSettings>();
  Options options;
  options.add("--storage-layers", "fusion/storage_layers", own.storage_layers,
              "fusedkv: bottom layers that store keys and values (0: half)",
              "0 (half of the layers) or a positive number",
              [](int layers) { return layers >= 0; });
  const auto set_fusion = [&own](const std::string& word) {
    own.form = value_of(kFusions, word, "fusion");
    own.sources = own.form == FusionForm::kFull ? FusionSources::kAll : own.sources;
  };
  options.add_word(
      "--fusion", "fusion/form", {set_fusion, [&own] { return to_string(own.form); }},
      "fusedkv: vectors (a factor per channel, default) or matrices (over all channels)");
  const auto set_pair = [&own](const std::string& word) {
    const FusionForm pair = value_of(kPairs, word, "weight of a RoPE pair");
    KVC_CHECK_USAGE(own.form != FusionForm::kFull,
                    "--pair {}: applies to --fusion vectors only; leave it out with matrices",
                    word);
    own.form = pair;
  };
  options.add_word(
      "--pair", "", {set_pair, [&own] { return to_string(own.form); }},
      "fusedkv: factors of a RoPE pair of keys: tied (one real factor, default) or complex");
  options.add("--sources", "fusion/sources", own.sources, kSources, "choice of sources",
              "fusedkv: layers that are read: paper (bottom and middle, default), search or all "
              "(default of matrices)");
  options.add("--head-map", "fusion/head_map", own.head_map, kHeadMaps, "head map",
              "fusedkv: KV heads that are read: same (default) or search");
  options.add("--min-r2", "fusion/min_r2", own.min_r2,
              "fusedkv: refuse layers whose fit has a lower R^2 (--force: convert anyway)",
              "at most 1", [](double r2) { return std::isfinite(r2) && r2 <= 1; });
  options.add("--mixed", "fusion/mixed", own.mixed, "fusedkv: leave layers below --min-r2 plain");
  constexpr std::int64_t kMostSteps = 10'000'000;
  DistillSettings& distill = own.distill;
  options.add("--distill-steps", "fusion/distill/steps", distill.steps,
              "fusedkv, fusedkv-lite: AdamW steps on the KL divergence from the original (0: none)",
              fmt::format("0 (none) to {}", kMostSteps),
              [](auto steps) { return steps >= 0 && steps <= kMostSteps; });
  options.add("--distill-batch", "fusion/distill/batch_sequences", distill.batch_sequences,
              "fusedkv: calibration sequences per step", "at least 1 sequence",
              [](auto sequences) { return sequences >= 1; });
  options.add("--distill-rate", "fusion/distill/rate", distill.rate,
              "fusedkv: highest learning rate", "a learning rate above 0", is_rate);
  options.add("--tune-layers", "fusion/distill/tune_layers", distill.tune_layers,
              "fusedkv: distillation also trains W_q, W_o and norms of fused layers");
  options.add("--tune-rate", "fusion/distill/tune_rate", distill.tune_rate,
              "fusedkv: highest rate for --tune-layers", "a learning rate above 0", is_rate);
  return options;
}

void check_fusion_settings(const FusionSettings& settings) {
  const bool full = settings.form == FusionForm::kFull;
  KVC_CHECK_USAGE(
      !full || settings.sources != FusionSources::kSearch,
      "--sources search: applies to --fusion vectors only; with matrices use all or paper");
  KVC_CHECK_USAGE(full || settings.sources != FusionSources::kAll,
                  "--sources all: needs --fusion matrices; use paper or search");
  KVC_CHECK_USAGE(!full || settings.head_map == HeadMap::kSame,
                  "--head-map search: applies to --fusion vectors only; leave it out with "
                  "matrices, which read all heads");
  KVC_CHECK_USAGE(!settings.distill.tune_layers || settings.distill.steps > 0,
                  "--tune-layers trains layers during distillation; use it with --distill-steps");
}

}  // namespace kvc
