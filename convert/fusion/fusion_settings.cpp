#include "convert/fusion/fusion_settings.h"

#include <cmath>

#include "core/enum_names.h"
#include "core/error.h"

namespace kvc {
namespace {

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
      "fusedkv: vectors (default), a factor per channel, or matrices over all of them");
  const auto set_pair = [&own](const std::string& word) {
    const FusionForm pair = value_of(kPairs, word, "weight of a RoPE pair");
    KVC_CHECK_USAGE(own.form != FusionForm::kFull,
                    "--pair {}: is for --fusion vectors; leave it out with matrices", word);
    own.form = pair;
  };
  options.add_word("--pair", "", {set_pair, [&own] { return to_string(own.form); }},
                   "fusedkv: factor of a RoPE pair of keys: tied (default) or complex");
  options.add("--sources", "fusion/sources", own.sources, kSources, "choice of sources",
              "fusedkv: layers read: paper (default: bottom and middle), search, or all (default "
              "of matrices)");
  options.add("--head-map", "fusion/head_map", own.head_map, kHeadMaps, "head map",
              "fusedkv: KV heads read: same (default) or search");
  options.add("--min-r2", "fusion/min_r2", own.min_r2,
              "fusedkv: R^2 below which a layer's fit is refused (--force: none)", "at most 1",
              [](double r2) { return std::isfinite(r2) && r2 <= 1; });
  options.add("--mixed", "fusion/mixed", own.mixed, "fusedkv: layers below --min-r2 stay plain");
  constexpr std::int64_t kMostSteps = 10'000'000;
  DistillSettings& distill = own.distill;
  options.add("--distill-steps", "fusion/distill/steps", distill.steps,
              "fusedkv, fusedkv-lite: AdamW steps on the KL divergence from the original (0: none)",
              fmt::format("0 (none) to {}", kMostSteps),
              [](auto steps) { return steps >= 0 && steps <= kMostSteps; });
  options.add("--distill-batch", "fusion/distill/batch_sequences", distill.batch_sequences,
              "Calibration sequences of a step", "at least 1 sequence",
              [](auto sequences) { return sequences >= 1; });
  options.add("--distill-rate", "fusion/distill/rate", distill.rate, "Highest learning rate",
              "a learning rate above 0", is_rate);
  options.add("--tune-layers", "fusion/distill/tune_layers", distill.tune_layers,
              "Distillation trains W_q, W_o and norms of fused layers too");
  options.add("--tune-rate", "fusion/distill/tune_rate", distill.tune_rate,
              "Their highest learning rate", "a learning rate above 0", is_rate);
  return options;
}

void check_fusion_settings(const FusionSettings& settings) {
  const bool full = settings.form == FusionForm::kFull;
  KVC_CHECK_USAGE(!full || settings.sources != FusionSources::kSearch,
                  "--sources search: chooses sources of fusion vectors; with --fusion matrices use "
                  "all or paper");
  KVC_CHECK_USAGE(full || settings.sources != FusionSources::kAll,
                  "--sources all: needs --fusion matrices; use paper or search");
  KVC_CHECK_USAGE(!full || settings.head_map == HeadMap::kSame,
                  "--head-map search: chooses heads of fusion vectors; leave it out with --fusion "
                  "matrices, which read all heads");
  KVC_CHECK_USAGE(!settings.distill.tune_layers || settings.distill.steps > 0,
                  "--tune-layers: layers learn while factors are distilled; use it with "
                  "--distill-steps");
}

}  // namespace kvc
