#include "convert/latent/latent_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "convert/latent/kept_range.h"
#include "core/error.h"
#include "model/cache_plan.h"
#include "model/layer_runs.h"

namespace kvc {
namespace {

// What is planned: a model and how a method groups its layers.
struct Subject {
  const ModelConfig& config;
  PlanGroups plan_groups;
};

bool merges(const ConvertSettings& settings) { return settings.merge != MergeRule::kNone; }

// Layers first to first + count - 1, for messages.
std::string layers_text(const LatentGroup& group) {
  return group.num_layers == 1 ? fmt::format("layer {}", group.first_layer)
                               : fmt::format("layers {}-{}", group.first_layer,
                                             group.first_layer + group.num_layers - 1);
}

void set_groups(KvPlan& plan, std::vector<LatentGroup> groups) {
  std::fill(plan.layers.begin(), plan.layers.end(), KvSource::kPlain);
  for (const LatentGroup& group : groups) {
    std::fill_n(plan.layers.begin() + group.first_layer, group.num_layers, KvSource::kLatent);
  }
  plan.groups = std::move(groups);
}

KvPlan raw_plan(const Subject& subject, const ConvertSettings& settings,
                const std::vector<double>* fisher_scores) {
  KvPlan plan = plain_plan(subject.config);
  plan.method = settings.method;
  plan.key_norm = subject.config.arch->qk_norm != QkNorm::kNone;
  plan.policy.rule = settings.merge;
  plan.policy.granularity = settings.granularity;
  plan.policy.prefill = settings.prefill;
  plan.policy.unmerged =
      settings.unmerged == UnmergedChoice::kLatent || settings.merge == MergeRule::kNone
          ? UnmergedForm::kLatent
          : UnmergedForm::kPlain;
  plan.policy.target_kept_ratio = settings.kept_ratio;
  plan.policy.sink_tokens = settings.sink_tokens;
  plan.policy.window_tokens = settings.window_tokens;
  plan.policy.block_tokens = settings.block_tokens;
  std::vector<LatentGroup> groups = subject.plan_groups(subject.config, settings, fisher_scores);
  for (LatentGroup& group : groups) {
    if (merges(settings) && settings.merge != MergeRule::kLs) {
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
  return kept_range(plan, context, dtype).lowest <= plan.policy.target_kept_ratio;
}

// One latent per layer where that is smaller than plain KV and still reaches the target.
void choose_unmerged_form(KvPlan& plan, std::int64_t context, KvDtype dtype) {
  KvPlan latent = plan;
  latent.policy.unmerged = UnmergedForm::kLatent;
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

KvPlan build_plan(const Subject& subject, const ConvertSettings& settings, bool keep_all,
                  const std::vector<double>* fisher_scores) {
  KvPlan plan = raw_plan(subject, settings, fisher_scores);
  const KvDtype dtype = cache_dtype(subject.config);
  const std::int64_t context = plan_context(subject.config, settings);
  if (!keep_all) {
    drop_useless_groups(plan, dtype);
  }
  if (merges(settings) && settings.unmerged == UnmergedChoice::kAuto) {
    choose_unmerged_form(plan, context, dtype);
  }
  if (!merges(settings)) {  // the rank alone decides
    plan.policy.target_kept_ratio = kept_range(plan, context, dtype).highest;
  }
  return plan;
}

bool enlarges_unmerged(const KvPlan& plan, KvDtype dtype) {
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const TokenBytes bytes = token_bytes(plan, static_cast<int>(i), dtype);
    if (plan.policy.unmerged == UnmergedForm::kLatent && bytes.unmerged >= bytes.plain) {
      return true;
    }
  }
  return false;
}

bool works(const Subject& subject, const ConvertSettings& settings) {
  const KvPlan plan = build_plan(subject, settings, false, nullptr);
  const KvDtype dtype = cache_dtype(subject.config);
  return !plan.groups.empty() && !enlarges_unmerged(plan, dtype) &&
         plan.policy.target_kept_ratio < 1 &&
         reaches(plan, plan_context(subject.config, settings), dtype);
}

// The nearest settings that work, each changing one thing: "--rank 0.45, --group 8 or --force".
std::string nearest_settings(const Subject& subject, const ConvertSettings& settings,
                             double lowest) {
  std::vector<std::string> ways;
  ConvertSettings other = settings;
  if (merges(settings) && lowest < 0.999) {
    other.kept_ratio = std::ceil(lowest * 1000) / 1000;
    if (works(subject, other)) {
      ways.push_back(fmt::format("--kept-ratio {:.3f}", other.kept_ratio));
    }
  }
  other = settings;
  for (int percent = static_cast<int>(std::ceil(settings.rank * 100)) - 1; percent >= 1;
       --percent) {
    other.rank = percent / 100.0;
    if (works(subject, other)) {
      ways.push_back(fmt::format("--rank {:.2f}", other.rank));
      break;
    }
  }
  other = settings;
  for (int layers = settings.layers_per_group + 1;
       merges(settings) && layers <= subject.config.num_layers; ++layers) {
    other.layers_per_group = layers;
    if (works(subject, other)) {
      ways.push_back(fmt::format("--group {}", layers));
      break;
    }
  }
  ways.push_back("--force to convert anyway");
  return fmt::format("{}", fmt::join(ways, ", or "));
}

[[noreturn]] void refuse_enlargement(const Subject& subject, const ConvertSettings& settings) {
  const KvPlan raw = raw_plan(subject, settings, nullptr);
  const KvDtype dtype = cache_dtype(subject.config);
  for (std::size_t i = 0; i < raw.groups.size(); ++i) {
    const TokenBytes bytes = token_bytes(raw, static_cast<int>(i), dtype);
    const bool merged_too = bytes.merged >= bytes.plain;
    if (merged_too ||
        (raw.policy.unmerged == UnmergedForm::kLatent && bytes.unmerged >= bytes.plain)) {
      fail(
          "{}: a {} token takes {} bytes in a latent of rank {}, its plain KV only {} ({:.2f}x); "
          "nothing would be saved. Use {}",
          layers_text(raw.groups[i]), merges(settings) && merged_too ? "merged" : "compressed",
          merged_too ? bytes.merged : bytes.unmerged, raw.groups[i].rank, bytes.plain,
          static_cast<double>(merged_too ? bytes.merged : bytes.unmerged) /
              static_cast<double>(bytes.plain),
          nearest_settings(subject, settings, 1));
    }
  }
  fail("no layer of this model can be compressed with these settings; use {}",
       nearest_settings(subject, settings, 1));
}

void check_reachable(const Subject& subject, const ConvertSettings& settings, const KvPlan& plan) {
  const std::int64_t context = plan_context(subject.config, settings);
  const KeptRange range = kept_range(plan, context, cache_dtype(subject.config));
  KVC_CHECK(range.lowest < 1, "the cache of {} tokens would not shrink (kept_ratio {:.3f}); use {}",
            context, range.lowest, nearest_settings(subject, settings, 1));
  KVC_CHECK(range.lowest <= plan.policy.target_kept_ratio,
            "--kept-ratio {} cannot be reached with --rank {} --group {}: with every possible "
            "token merged, a cache of {} tokens has a kept_ratio of {:.4f} ({} sink and window "
            "tokens stay exact). Use {}",
            settings.kept_ratio, settings.rank, settings.layers_per_group, context, range.lowest,
            std::min(context, settings.sink_tokens + settings.window_tokens),
            nearest_settings(subject, settings, range.lowest));
}

}  // namespace

KvPlan make_latent_plan(const ModelConfig& config, const ConvertSettings& settings, bool force,
                        const std::vector<double>* fisher_scores, PlanGroups plan_groups) {
  const Subject subject{config, plan_groups};
  KvPlan plan = build_plan(subject, settings, false, fisher_scores);
  if (plan.groups.empty() || enlarges_unmerged(plan, cache_dtype(config))) {
    if (!force) {
      refuse_enlargement(subject, settings);
    }
    plan = build_plan(subject, settings, true, fisher_scores);
  }
  if (!force) {
    check_reachable(subject, settings, plan);
  }
  return plan;
}

double least_latent_kept_ratio(const ModelConfig& config, const ConvertSettings& settings,
                               PlanGroups plan_groups) {
  const KvPlan plan = build_plan({config, plan_groups}, settings, false, nullptr);
  return plan.groups.empty()
             ? 1
             : kept_range(plan, plan_context(config, settings), cache_dtype(config)).lowest;
}

ExactTokens latent_exact_tokens(std::int64_t context) {
  constexpr std::int64_t kShare = 16, kMostWindow = 128, kMostBlock = 64;
  const std::int64_t window = std::min(kMostWindow, context / kShare);
  return {.sink = 4, .window = window, .block = std::clamp<std::int64_t>(window, 1, kMostBlock)};
}

std::int64_t rank_multiple(const ModelConfig& config, const ConvertSettings& settings) {
  if (settings.rank_multiple > 0) {
    return settings.rank_multiple;
  }
  return config.hidden_size >= 1024 ? 32 : 4;
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
