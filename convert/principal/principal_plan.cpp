#include "convert/principal/principal_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "convert/latent/latent_plan.h"
#include "convert/plan.h"
#include "core/error.h"
#include "core/kv_plan_bytes.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

constexpr std::int64_t kIntegerMultiple = 32;  // channels that share a scale

// What a plan of principal directions is made for.
struct Target {
  const ModelConfig& config;
  const ConvertSettings& settings;
  KvDtype dtype;
  std::int64_t context;
  KvWidths widths;  // of a layer's part of y

  const PrincipalSettings& own() const { return settings.own<PrincipalSettings>(); }
  // A model's own latents are not keys and values apart.
  bool is_joint() const { return own().joint || widths.value == 0; }

  std::int64_t exact_tokens() const {
    return std::min(context, settings.sink_tokens + settings.window_tokens);
  }
};

Target target_of(const ModelConfig& config, const ConvertSettings& settings) {
  return {config, settings, planned_dtype(config, settings), plan_context(config, settings),
          grouped_widths(plain_plan(config))};
}

std::int64_t rounded(std::int64_t rank, std::int64_t multiple, std::int64_t widest) {
  return std::clamp(rank - rank % multiple, std::min(multiple, widest), widest);
}

// `total` numbers of a latent as keys' and values', 1 : value_ratio; keys have what values have no room for.
void share_rank(LatentGroup& group, std::int64_t total, const Target& target) {
  const std::int64_t multiple = principal_rank_multiple(target.config, target.settings);
  group.split_kv = !target.is_joint();
  if (!group.split_kv) {
    group.rank = rounded(total, multiple, group.num_layers * target.widths.total());
    return;
  }
  const std::int64_t widest = group.num_layers * target.widths.key;
  const double key = static_cast<double>(total) / (1 + target.own().value_ratio);
  group.key_rank = rounded(std::llround(key), multiple, widest);
  group.value_rank = rounded(total - group.key_rank, multiple, widest);
  if (group.value_rank == widest) {
    group.key_rank = rounded(total - widest, multiple, widest);
  }
  group.rank = group.key_rank + group.value_rank;
}

// What one group holds of a text of the plan's context.
std::int64_t bytes_at_context(const KvPlan& plan, int group, const Target& target) {
  const std::int64_t exact = target.exact_tokens();
  return group_bytes(
      plan, group,
      {.merged = target.context - exact, .pending = exact, .bases = plan.request ? 1 : 0},
      target.dtype);
}

// The widest latent within the target. Its bytes grow with the rank.
void fit_rank(KvPlan& plan, int index, const Target& target) {
  LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  const std::int64_t own = original_bytes(plan, target.context, cache_dtype(target.config));
  const double allowed =
      target.settings.kept_ratio * static_cast<double>(own) * group.num_layers / plan.num_layers();
  const std::int64_t multiple = principal_rank_multiple(target.config, target.settings);
  std::int64_t total = group.num_layers * target.widths.total();
  for (; total > multiple; total -= multiple) {
    share_rank(group, total, target);
    if (static_cast<double>(bytes_at_context(plan, index, target)) <= allowed) {
      return;
    }
  }
  share_rank(group, total, target);
}

void set_given_rank(LatentGroup& group, const Target& target) {
  const std::int64_t widest = group.num_layers * target.widths.key;
  // Given ranks are taken as they are unless --rank-multiple is given too.
  const std::int64_t multiple =
      std::max<std::int64_t>(1, target.settings.own<RankSettings>().multiple);
  const auto of_group = [&](std::int64_t of_layer) {
    return rounded(group.num_layers * of_layer, multiple, widest);
  };
  const std::int64_t key = of_group(target.own().key_rank);
  const std::int64_t value = of_group(target.own().value_rank);
  group.split_kv = !target.is_joint();
  group.rank = std::min(key + value, group.num_layers * target.widths.total());
  if (group.split_kv) {
    group.key_rank = key;
    group.value_rank = value;
  }
}

void set_policy(KvPlan& plan, const ConvertSettings& settings, LatentBasis basis) {
  plan.compression.rule = MergeRule::kLs;
  plan.compression.granularity = Granularity::kGroup;
  plan.compression.prefill = PrefillMode::kExact;
  plan.compression.unmerged = UnmergedForm::kPlain;
  plan.compression.sink_tokens = settings.sink_tokens;
  plan.compression.window_tokens = settings.window_tokens;
  plan.compression.block_tokens = settings.block_tokens;
  if (basis == LatentBasis::kRequest) {
    const PrincipalSettings& own = settings.own<PrincipalSettings>();
    plan.request = RequestSettings{
        .later = own.later, .compress_generated = own.recompress_every > 0, .solver = own.solver};
    if (own.recompress_every > 0) {
      plan.compression.block_tokens = own.recompress_every;
    }
  }
}

KvPlan raw_plan(const Target& target, LatentBasis basis) {
  KvPlan plan = base_plan(target.config, target.settings);
  set_policy(plan, target.settings, basis);
  plan.groups = group_layers(target.config, target.settings.layers_per_group);
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    plan.groups[i].basis = basis;
    if (target.own().key_rank > 0) {
      set_given_rank(plan.groups[i], target);
    } else {
      fit_rank(plan, static_cast<int>(i), target);
    }
  }
  return plan;
}

// Groups that would not shrink keep their plain KV.
void drop_useless_groups(KvPlan& plan, const Target& target, bool force) {
  std::vector<LatentGroup> useful;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const LatentGroup& group = plan.groups[i];
    const std::int64_t plain =
        group.num_layers * plain_layer_bytes(plan, target.context, target.dtype);
    if (force || bytes_at_context(plan, static_cast<int>(i), target) < plain) {
      useful.push_back(group);
      std::fill_n(plan.layers.begin() + group.first_layer, group.num_layers, KvSource::kLatent);
    }
  }
  plan.groups = std::move(useful);
}

double kept_at_context(const KvPlan& plan, const Target& target) {
  const std::int64_t exact = target.exact_tokens();
  const std::vector<GroupTokens> tokens(
      plan.groups.size(),
      {.merged = target.context - exact, .pending = exact, .bases = plan.request ? 1 : 0});
  return static_cast<double>(plan_bytes(plan, target.context, tokens, target.dtype)) /
         static_cast<double>(original_bytes(plan, target.context, cache_dtype(target.config)));
}

void check_saving(const KvPlan& plan, const Target& target) {
  const double kept = plan.groups.empty() ? 1 : kept_at_context(plan, target);
  const PrincipalSettings& own = target.own();
  const std::string smaller =
      own.key_rank > 0
          ? fmt::format("--key-rank {} and --value-rank {} are given; use smaller ones",
                        own.key_rank, own.value_rank)
          : "use a lower --kept-ratio";
  KVC_CHECK(kept < 1,
            "--method {}: a cache of {} tokens would not shrink ({} sink and window tokens stay "
            "exact{}); {}, a smaller --window or a longer --context",
            target.settings.method, target.context, target.exact_tokens(),
            plan.request ? ", and every request keeps its basis" : "", smaller);
  KVC_CHECK(
      own.key_rank > 0 || kept <= target.settings.kept_ratio,
      "--kept-ratio {} cannot be reached: a cache of {} tokens keeps {:.4f} with the smallest "
      "latents ({} sink and window tokens stay exact); use --kept-ratio {:.3f}, a smaller "
      "--window, a larger --group, a longer --context, or --force",
      target.settings.kept_ratio, target.context, kept, target.exact_tokens(),
      std::ceil(kept * 1000) / 1000);
}

// Error for a plan that the runtime refuses (check_generated_block): --force does not help.
void check_recompression(const KvPlan& plan, const Target& target) {
  if (plan.request && target.own().recompress_every > 0) {
    const std::int64_t least = break_even_tokens(plan, target.dtype);
    KVC_CHECK(target.own().recompress_every >= least,
              "--recompress-every {}: a basis for so few tokens saves nothing; use {} or more",
              target.own().recompress_every, least);
  }
}

}  // namespace

double least_principal_kept_ratio(const PlanRequest& request, LatentBasis basis) {
  ConvertSettings narrowest = request.settings;
  if (narrowest.own<PrincipalSettings>().key_rank == 0) {
    narrowest.kept_ratio = 0;
  }
  const Target target = target_of(request.config, narrowest);
  KvPlan plan = raw_plan(target, basis);
  drop_useless_groups(plan, target, false);
  return plan.groups.empty() ? 1 : kept_at_context(plan, target);
}

KvPlan make_principal_plan(const PlanRequest& request, LatentBasis basis) {
  const ModelConfig& config = request.config;
  const ConvertSettings& settings = request.settings;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    KVC_CHECK(config.arch->qk_norm == QkNorm::kNone || !config.depends_on_length(layer),
              "--method {}: cannot compress {}, whose keys have a norm and a RoPE that depends on "
              "the length of the text; use --method commonkv",
              settings.method, config.arch->model_type);
  }
  KVC_CHECK(!config.mla || !settings.cache_metric || *settings.cache_metric == CacheMetric::kNone,
            "--metric {}: metrics require keys and values per head; {} caches latents of all heads "
            "together. Use none",
            to_string(*settings.cache_metric), config.arch->model_type);
  const Target target = target_of(config, settings);
  KvPlan plan = raw_plan(target, basis);
  drop_useless_groups(plan, target, request.force);
  if (plan.groups.empty()) {
    plan.request.reset();
  }
  if (!request.force) {
    check_saving(plan, target);
  }
  check_recompression(plan, target);
  plan.compression.target_kept_ratio = kept_at_context(plan, target);
  return plan;
}

std::int64_t principal_rank_multiple(const ModelConfig& config, const ConvertSettings& settings) {
  const std::int64_t multiple = rank_multiple(config, settings);
  return settings.own<RankSettings>().multiple == 0 && is_integer(planned_dtype(config, settings))
             ? std::max(multiple, kIntegerMultiple)
             : multiple;
}

}  // namespace kvc
