#include "convert/latent/latent_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "convert/plan.h"
#include "core/error.h"
#include "core/kv_plan_parts.h"
#include "model/cache_plan.h"
#include "model/config.h"

namespace kvc {
namespace {

bool merges(const ConvertSettings& settings) {
  return settings.own<LatentSettings>().merge != MergeRule::kNone;
}

// The request with other settings, forced to nothing and without scores.
PlanRequest with(const PlanRequest& request, const ConvertSettings& settings) {
  return {request.config, settings};
}

void set_groups(KvPlan& plan, std::vector<LatentGroup> groups) {
  std::fill(plan.layers.begin(), plan.layers.end(), KvSource::kPlain);
  for (const LatentGroup& group : groups) {
    std::fill_n(plan.layers.begin() + group.first_layer, group.num_layers, KvSource::kLatent);
  }
  plan.groups = std::move(groups);
}

KvPlan raw_plan(const PlanRequest& request, PlanGroups plan_groups) {
  const ConvertSettings& settings = request.settings;
  const LatentSettings& own = settings.own<LatentSettings>();
  KvPlan plan = base_plan(request.config, settings);
  plan.compression.rule = own.merge;
  plan.compression.granularity = own.granularity;
  plan.compression.prefill = settings.prefill;
  plan.compression.unmerged =
      own.unmerged == UnmergedChoice::kLatent || own.merge == MergeRule::kNone
          ? UnmergedForm::kLatent
          : UnmergedForm::kPlain;
  plan.compression.target_kept_ratio = settings.kept_ratio;
  plan.compression.sink_tokens = settings.sink_tokens;
  plan.compression.window_tokens = settings.window_tokens;
  plan.compression.block_tokens = settings.block_tokens;
  std::vector<LatentGroup> groups = plan_groups(request);
  for (LatentGroup& group : groups) {
    if (merges(settings) && own.merge != MergeRule::kLs) {
      group.merge_weights.assign(static_cast<std::size_t>(group.num_layers),
                                 1.0 / group.num_layers);
    }
  }
  set_groups(plan, std::move(groups));
  return plan;
}

// Groups whose compressed token is not smaller than its plain KV keep that.
void drop_useless_groups(KvPlan& plan, KvDtype dtype) {
  std::vector<LatentGroup> useful;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const TokenBytes bytes = token_bytes(plan, static_cast<int>(i), dtype);
    if (bytes.merged < bytes.plain) {
      useful.push_back(plan.groups[i]);
    }
  }
  set_groups(plan, std::move(useful));
}

bool reaches(const KvPlan& plan, std::int64_t context, KvDtype dtype) {
  return kept_range(plan, context, dtype).lowest <= plan.compression.target_kept_ratio;
}

// One latent per layer where that is smaller than plain KV and still reaches the target.
void choose_unmerged_form(KvPlan& plan, std::int64_t context, KvDtype dtype) {
  KvPlan latent = plan;
  latent.compression.unmerged = UnmergedForm::kLatent;
  for (std::size_t i = 0; i < latent.groups.size(); ++i) {
    const TokenBytes bytes = token_bytes(latent, static_cast<int>(i), dtype);
    if (bytes.unmerged >= bytes.plain) {
      return;
    }
  }
  if (!latent.groups.empty() && reaches(latent, context, dtype)) {
    plan = std::move(latent);
  }
}

KvPlan build_plan(const PlanRequest& request, PlanGroups plan_groups, bool keep_all) {
  const ConvertSettings& settings = request.settings;
  KvPlan plan = raw_plan(request, plan_groups);
  const KvDtype dtype = cache_dtype(request.config);
  const std::int64_t context = plan_context(request.config, settings);
  if (!keep_all) {
    drop_useless_groups(plan, dtype);
  }
  if (merges(settings) && settings.own<LatentSettings>().unmerged == UnmergedChoice::kAuto) {
    choose_unmerged_form(plan, context, dtype);
  }
  if (!merges(settings)) {  // the rank alone decides
    plan.compression.target_kept_ratio = kept_range(plan, context, dtype).highest;
  }
  return plan;
}

bool enlarges_unmerged(const KvPlan& plan, KvDtype dtype) {
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const TokenBytes bytes = token_bytes(plan, static_cast<int>(i), dtype);
    if (plan.compression.unmerged == UnmergedForm::kLatent && bytes.unmerged >= bytes.plain) {
      return true;
    }
  }
  return false;
}

bool works(const PlanRequest& request, PlanGroups plan_groups) {
  const KvPlan plan = build_plan(request, plan_groups, false);
  const KvDtype dtype = cache_dtype(request.config);
  return !plan.groups.empty() && !enlarges_unmerged(plan, dtype) &&
         plan.compression.target_kept_ratio < 1 &&
         reaches(plan, plan_context(request.config, request.settings), dtype);
}

// The nearest settings that work, each changing one thing: "--rank 0.45, --group 8 or --force".
std::string nearest_settings(const PlanRequest& request, PlanGroups plan_groups, double lowest) {
  const ConvertSettings& settings = request.settings;
  const double rank = settings.own<LatentSettings>().rank;
  const auto fits = [&](const ConvertSettings& other) {
    return works(with(request, other), plan_groups);
  };
  std::vector<std::string> ways;
  ConvertSettings other = settings;
  if (merges(settings) && lowest < 0.999) {
    other.kept_ratio = std::ceil(lowest * 1000) / 1000;
    if (fits(other)) {
      ways.push_back(fmt::format("--kept-ratio {:.3f}", other.kept_ratio));
    }
  }
  other = settings;
  for (int percent = static_cast<int>(std::ceil(rank * 100)) - 1; percent >= 1; --percent) {
    latent_rank(other) = percent / 100.0;
    if (fits(other)) {
      ways.push_back(fmt::format("--rank {:.2f}", latent_rank(other)));
      break;
    }
  }
  other = settings;
  for (int layers = settings.layers_per_group + 1;
       merges(settings) && layers <= request.config.num_layers; ++layers) {
    other.layers_per_group = layers;
    if (fits(other)) {
      ways.push_back(fmt::format("--group {}", layers));
      break;
    }
  }
  constexpr std::pair<const char*, std::int64_t ConvertSettings::*> kExact[] = {
      {"--sink", &ConvertSettings::sink_tokens}, {"--window", &ConvertSettings::window_tokens}};
  for (const auto& [flag, tokens] : kExact) {
    for (other = settings; other.*tokens > 0;) {
      other.*tokens /= 2;
      if (fits(other)) {
        ways.push_back(fmt::format("{} {}", flag, other.*tokens));
        break;
      }
    }
  }
  ways.push_back("--force to convert anyway");
  return fmt::format("{}", fmt::join(ways, ", or "));
}

[[noreturn]] void refuse_enlargement(const PlanRequest& request, PlanGroups plan_groups) {
  const KvPlan raw = raw_plan(with(request, request.settings), plan_groups);
  const KvDtype dtype = cache_dtype(request.config);
  for (std::size_t i = 0; i < raw.groups.size(); ++i) {
    const TokenBytes bytes = token_bytes(raw, static_cast<int>(i), dtype);
    const bool merged_too = bytes.merged >= bytes.plain;
    if (merged_too ||
        (raw.compression.unmerged == UnmergedForm::kLatent && bytes.unmerged >= bytes.plain)) {
      fail(
          "{}: a {} token takes {} bytes in a latent of rank {}, its plain KV only {} ({:.2f}x); "
          "nothing would be saved. Use {}",
          to_string(LayerRange{raw.groups[i].first_layer, raw.groups[i].num_layers}),
          merges(request.settings) && merged_too ? "merged" : "compressed",
          merged_too ? bytes.merged : bytes.unmerged, raw.groups[i].rank, bytes.plain,
          static_cast<double>(merged_too ? bytes.merged : bytes.unmerged) /
              static_cast<double>(bytes.plain),
          nearest_settings(request, plan_groups, 1));
    }
  }
  fail("no layer of this model can be compressed with these settings; use {}",
       nearest_settings(request, plan_groups, 1));
}

void check_reachable(const PlanRequest& request, PlanGroups plan_groups, const KvPlan& plan) {
  const ConvertSettings& settings = request.settings;
  const std::int64_t context = plan_context(request.config, settings);
  const KeptRange range = kept_range(plan, context, cache_dtype(request.config));
  const std::int64_t exact = std::min(context, settings.sink_tokens + settings.window_tokens);
  KVC_CHECK(range.lowest < 1,
            "the cache of {} tokens would not shrink (kept_ratio {:.3f}; {} sink and window tokens "
            "stay exact); use {}",
            context, range.lowest, exact, nearest_settings(request, plan_groups, 1));
  KVC_CHECK(range.lowest <= plan.compression.target_kept_ratio,
            "--kept-ratio {} cannot be reached with --rank {} --group {}: with every possible "
            "token merged, a cache of {} tokens has a kept_ratio of {:.4f} ({} sink and window "
            "tokens stay exact). Use {}",
            settings.kept_ratio, settings.own<LatentSettings>().rank, settings.layers_per_group,
            context, range.lowest, exact, nearest_settings(request, plan_groups, range.lowest));
}

}  // namespace

KvPlan make_latent_plan(const PlanRequest& request, PlanGroups plan_groups) {
  KvPlan plan = build_plan(request, plan_groups, false);
  if (plan.groups.empty() || enlarges_unmerged(plan, cache_dtype(request.config))) {
    if (!request.force) {
      refuse_enlargement(request, plan_groups);
    }
    plan = build_plan(request, plan_groups, true);
  }
  if (!request.force) {
    check_reachable(request, plan_groups, plan);
  }
  return plan;
}

double least_latent_kept_ratio(const PlanRequest& request, PlanGroups plan_groups) {
  const KvPlan plan = build_plan(request, plan_groups, false);
  return plan.groups.empty() ? 1
                             : kept_range(plan, plan_context(request.config, request.settings),
                                          cache_dtype(request.config))
                                   .lowest;
}

ExactTokens latent_exact_tokens(const ConvertSettings&, std::int64_t context) {
  constexpr std::int64_t kShare = 16, kMostWindow = 128, kMostBlock = 64;
  const std::int64_t window = std::min(kMostWindow, context / kShare);
  return {.sink = 4, .window = window, .block = std::clamp<std::int64_t>(window, 1, kMostBlock)};
}

std::vector<LatentGroup> group_layers(const ModelConfig& config, int layers_per_group) {
  std::vector<LatentGroup> groups;
  for (const LayerRun& run : layer_runs(config, layers_per_group)) {
    LatentGroup& group = groups.emplace_back();
    group.first_layer = run.first_layer;
    group.num_layers = run.num_layers;
  }
  return groups;
}

}  // namespace kvc
