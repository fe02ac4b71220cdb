#include "convert/fusion/command_line.h"

#include <memory>
#include <string>

#include "convert/flag_words.h"
#include "core/error.h"

namespace kvc {
namespace {

struct FusionWords {
  std::string fusion, pair, sources, head_map;
};

void apply(const FusionWords& words, FusionSettings& settings) {
  parse_word("--pair", words.pair, parse_pair, settings.form);
  parse_word("--fusion", words.fusion, parse_fusion, settings.form);
  KVC_CHECK_USAGE(words.pair.empty() || settings.form != FusionForm::kFull,
                  "--pair {}: is for --fusion vectors; leave it out with matrices", words.pair);
  if (words.fusion == "vectors" && !words.pair.empty()) {
    settings.form = parse_pair(words.pair);
  }
  if (settings.form == FusionForm::kFull) {
    settings.sources = FusionSources::kAll;
  }
  parse_word("--sources", words.sources, parse_fusion_sources, settings.sources);
  parse_word("--head-map", words.head_map, parse_head_map, settings.head_map);
}

}  // namespace

std::function<void()> declare_fusion_options(CLI::App& app, FusionSettings& settings) {
  const auto words = std::make_shared<FusionWords>();
  app.add_option("--storage-layers", settings.storage_layers,
                 "fusedkv: bottom layers that store keys and values (0: half)");
  app.add_option("--fusion", words->fusion,
                 "fusedkv: vectors (default), a factor per channel, or matrices over all of them");
  app.add_option("--pair", words->pair,
                 "fusedkv: factor of a RoPE pair of keys: tied (default) or complex");
  app.add_option(
      "--sources", words->sources,
      "fusedkv: layers read: paper (default: bottom and middle), search, or all (default "
      "of matrices)");
  app.add_option("--head-map", words->head_map, "fusedkv: KV heads read: same (default) or search");
  app.add_option("--min-r2", settings.min_r2,
                 "fusedkv: R^2 below which a layer's fit is refused (--force: none)")
      ->capture_default_str();
  app.add_flag("--mixed", settings.mixed, "fusedkv: layers below --min-r2 stay plain");
  app.add_option(
      "--distill-steps", settings.distill.steps,
      "fusedkv, fusedkv-lite: AdamW steps on the KL divergence from the original (0: none)");
  app.add_option("--distill-batch", settings.distill.batch_sequences,
                 "Calibration sequences of a step")
      ->capture_default_str();
  app.add_option("--distill-rate", settings.distill.rate, "Highest learning rate")
      ->capture_default_str();
  app.add_flag("--tune-layers", settings.distill.tune_layers,
               "Distillation trains W_q, W_o and norms of fused layers too");
  app.add_option("--tune-rate", settings.distill.tune_rate, "Their highest learning rate")
      ->capture_default_str();
  return [words, &settings] { apply(*words, settings); };
}

}  // namespace kvc
