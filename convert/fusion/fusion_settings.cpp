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

}  // namespace

std::string to_string(FusionSources value) { return name_of(kSources, value); }
std::string to_string(HeadMap value) { return name_of(kHeadMaps, value); }
FusionSources parse_fusion_sources(const std::string& name) {
  return value_of(kSources, name, "choice of sources");
}
HeadMap parse_head_map(const std::string& name) { return value_of(kHeadMaps, name, "head map"); }
FusionForm parse_pair(const std::string& name) {
  return value_of(kPairs, name, "weight of a RoPE pair");
}
FusionForm parse_fusion(const std::string& name) { return value_of(kFusions, name, "fusion"); }

Json to_json(const FusionSettings& settings) {
  const DistillSettings& distill = settings.distill;
  return {{"storage_layers", settings.storage_layers},
          {"form", to_string(settings.form)},
          {"sources", to_string(settings.sources)},
          {"head_map", to_string(settings.head_map)},
          {"min_r2", settings.min_r2},
          {"mixed", settings.mixed},
          {"distill",
           {{"steps", distill.steps},
            {"batch_sequences", distill.batch_sequences},
            {"rate", distill.rate},
            {"tune_layers", distill.tune_layers},
            {"tune_rate", distill.tune_rate}}}};
}

void check_ranges(const FusionSettings& settings) {
  const DistillSettings& distill = settings.distill;
  KVC_CHECK_USAGE(settings.storage_layers >= 0,
                  "--storage-layers {}: expected 0 (half of the layers) or a positive number",
                  settings.storage_layers);
  KVC_CHECK_USAGE(std::isfinite(settings.min_r2) && settings.min_r2 <= 1,
                  "--min-r2 {}: expected at most 1", settings.min_r2);
  const bool full = settings.form == FusionForm::kFull;
  KVC_CHECK_USAGE(
      !full || settings.sources != FusionSources::kSearch,
      "--sources search: applies to --fusion vectors only; with matrices use all or paper");
  KVC_CHECK_USAGE(full || settings.sources != FusionSources::kAll,
                  "--sources all: needs --fusion matrices; use paper or search");
  KVC_CHECK_USAGE(!full || settings.head_map == HeadMap::kSame,
                  "--head-map search: applies to --fusion vectors only; leave it out with "
                  "matrices, which read all heads");
  constexpr std::int64_t kMostSteps = 10'000'000;
  KVC_CHECK_USAGE(distill.steps >= 0 && distill.steps <= kMostSteps,
                  "--distill-steps {}: expected 0 (none) to {}", distill.steps, kMostSteps);
  KVC_CHECK_USAGE(distill.batch_sequences >= 1, "--distill-batch {}: expected at least 1 sequence",
                  distill.batch_sequences);
  KVC_CHECK_USAGE(std::isfinite(distill.rate) && distill.rate > 0,
                  "--distill-rate {}: expected a learning rate above 0", distill.rate);
  KVC_CHECK_USAGE(std::isfinite(distill.tune_rate) && distill.tune_rate > 0,
                  "--tune-rate {}: expected a learning rate above 0", distill.tune_rate);
  KVC_CHECK_USAGE(!distill.tune_layers || distill.steps > 0,
                  "--tune-layers trains layers during distillation; use it with --distill-steps");
}

}  // namespace kvc
