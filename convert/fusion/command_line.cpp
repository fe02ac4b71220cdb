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
                  "--pair {}: applies to --fusion vectors only; leave it out with matrices",
                  words.pair);
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
  app.add_option(
      "--fusion", words->fusion,
      "fusedkv: vectors (a factor per channel, default) or matrices (over all channels)");
  app.add_option(
      "--pair", words->pair,
      "fusedkv: factors of a RoPE pair of keys: tied (one real factor, default) or complex");
  app.add_option("--sources", words->sources,
                 "fusedkv: layers that are read: paper (bottom and middle, default), search or all "
                 "(default of matrices)");
  app.add_option("--head-map", words->head_map,
                 "fusedkv: KV heads that are read: same (default) or search");
  app.add_option("--min-r2", settings.min_r2,
                 "fusedkv: refuse layers whose fit has a lower R^2 (--force: convert anyway)")
      ->capture_default_str();
  app.add_flag("--mixed", settings.mixed, "fusedkv: leave layers below --min-r2 plain");
  app.add_option(
      "--distill-steps", settings.distill.steps,
      "fusedkv, fusedkv-lite: AdamW steps on the KL divergence from the original (0: none)");
  app.add_option("--distill-batch", settings.distill.batch_sequences,
                 "fusedkv: calibration sequences per step")
      ->capture_default_str();
  app.add_option("--distill-rate", settings.distill.rate, "fusedkv: highest learning rate")
      ->capture_default_str();
  app.add_flag("--tune-layers", settings.distill.tune_layers,
               "fusedkv: distillation also trains W_q, W_o and norms of fused layers");
  app.add_option("--tune-rate", settings.distill.tune_rate, "fusedkv: their highest learning rate")
      ->capture_default_str();
  return [words, &settings] { apply(*words, settings); };
}

}  // namespace kvc
