// CommonKV: one factorisation for the stacked key and value projections of adjacent layers; the
// latents of a group become one per merged token.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "convert/latent/group_fit.h"
#include "convert/latent/group_forms.h"
#include "convert/latent/group_svd.h"
#include "convert/latent/latent_conversion.h"
#include "convert/latent/latent_plan.h"
#include "convert/latent/merging.h"
#include "convert/methods/methods.h"
#include "convert/served_kinds.h"
#include "core/progress.h"

namespace kvc {
namespace {

void apply_commonkv_preset(ConvertSettings& settings) {
  LatentSettings& own = settings.own<LatentSettings>();
  own.factor = Factor::kPlain;
  own.merge = MergeRule::kFisher;
  own.granularity = Granularity::kGroup;
  settings.prefill = PrefillMode::kTruncated;
  own.refit = false;
  own.ls_fisher_weights = false;
  settings.own<RankSettings>().multiple = 1;
}

double group_score(const LatentGroup& group, const std::vector<double>& fisher_scores) {
  const auto first = fisher_scores.begin() + 2 * group.first_layer;
  return std::accumulate(first, first + 2 * group.num_layers, 0.0);
}

// With the pivot gauge every KV head of every layer keeps the same number of RoPE pairs.
std::int64_t group_rank_multiple(const ModelConfig& config, const ConvertSettings& settings,
                                 const std::vector<LatentGroup>& groups) {
  std::int64_t multiple = rank_multiple(config, settings);
  if (settings.own<LatentSettings>().gauge == Gauge::kPivot &&
      settings.own<RankSettings>().multiple == 0 && !groups.empty()) {
    multiple = std::lcm(multiple, 2 * groups.front().num_layers * config.num_kv_heads);
  }
  return std::min(multiple, config.hidden_size);
}

std::vector<LatentGroup> plan_commonkv_groups(const PlanRequest& request) {
  const ModelConfig& config = request.config;
  const ConvertSettings& settings = request.settings;
  std::vector<LatentGroup> groups = group_layers(config, settings.layers_per_group);
  const std::int64_t multiple = group_rank_multiple(config, settings, groups);
  const double width =
      settings.own<LatentSettings>().rank * static_cast<double>(config.hidden_size);
  std::vector<std::int64_t> caps;
  std::vector<double> scores;
  std::int64_t total = 0;
  for (LatentGroup& group : groups) {
    caps.push_back(std::min(config.hidden_size, 2 * group.num_layers * config.kv_dim()));
    group.rank = round_rank(width, multiple, caps.back());
    total += group.rank;
    scores.push_back(request.fisher_scores != nullptr ? group_score(group, *request.fisher_scores)
                                                      : 0);
  }
  if (settings.own<RankSettings>().allocation == RankAllocation::kFisher &&
      request.fisher_scores != nullptr) {
    const std::vector<std::int64_t> ranks = allocate_ranks(scores, total, caps, multiple);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i].rank = ranks[i];
    }
  }
  return groups;
}

const LatentSettings& own_settings(const GroupJob& job) {
  return job.conversion.settings.own<LatentSettings>();
}

Merger make_merger(const GroupJob& job, const GroupFactorization& factors) {
  Merger merger;
  if (own_settings(job).merge == MergeRule::kLs) {
    const at::Tensor weights = own_settings(job).ls_fisher_weights
                                   ? ls_channel_weights(job.group, job.conversion.fisher.channel,
                                                        job.conversion.config.kv_dim())
                                   : at::Tensor();
    merger.encoder = ls_encoder(factors, weights);
  } else {
    merger.weights = job.group.merge_weights;
  }
  return merger;
}

// What a merged token is encoded with and rebuilt from. float64
struct MergedFactors {
  at::Tensor encoder, reconstruct_proj;  // encoder: rule ls
};

// In the pivot gauge where the settings ask for it and the group allows it. Returns the condition of
// the change, 0 where there is none.
double regauge(const GroupJob& job, MergedFactors& factors) {
  if (own_settings(job).gauge == Gauge::kSvd) {
    return 0;
  }
  const PivotGauge gauge = pivot_gauge(job.group, job.conversion.config.kv_dim(),
                                       job.conversion.config.head_dim, factors.reconstruct_proj);
  if (gauge.rows.empty()) {
    log_warning(fmt::format(
        "group {}: no well-conditioned choice of {} key channels; it keeps the factorisation's "
        "coordinates",
        job.index, job.group.rank));
    return 0;
  }
  factors.encoder = at::mm(gauge.transform, factors.encoder);
  factors.reconstruct_proj = regauge_reconstruct(gauge, factors.reconstruct_proj);
  return gauge.condition;
}

GroupResult convert_group(GroupJob& job, const GroupFactorization& factors) {
  job.group.rank = factors.rank();
  const Merger merger = make_merger(job, factors);
  GroupFit fit(job.group, job.conversion.config.kv_dim(), factors.latent_proj,
               factors.reconstruct_proj, merger, job.conversion.device);
  job.stream.advance(job.group.num_layers,
                     [&](const LayerActivations& activations) { fit.add(activations); });

  GroupResult result;
  const auto emit = [&](const char* name, const at::Tensor& tensor) {
    result.tensors.emplace_back(name, tensor.to(at::kFloat).contiguous());
  };
  emit("latent_proj", factors.latent_proj);
  emit("reconstruct_proj", factors.reconstruct_proj);
  MergedFactors merged{merger.encoder,
                       own_settings(job).refit ? fit.refit() : factors.reconstruct_proj};
  FitErrors merged_errors;
  if (own_settings(job).merge != MergeRule::kNone) {
    merged_errors = fit.merged_errors(merged.reconstruct_proj);
  }
  result.report.pivot_condition = regauge(job, merged);
  if (merged.encoder.defined()) {
    emit("encoder", merged.encoder);
  }
  if (own_settings(job).refit || result.report.pivot_condition > 0) {
    emit("merged_reconstruct_proj", merged.reconstruct_proj);
  }
  choose_forms(job.conversion.result.plan, job.index, fit, result.tensors);
  const FitErrors unmerged = fit.unmerged_errors();
  GroupReport& report = result.report;
  report.rank = factors.rank();
  report.energy_kept = factors.energy_kept;
  report.optimum_error = factors.optimum_error;
  report.key_error = unmerged.key;
  report.value_error = unmerged.value;
  report.merged_key_error = merged_errors.key;
  report.merged_value_error = merged_errors.value;
  const double* s = factors.singular_values.const_data_ptr<double>();
  report.singular_values.assign(s, s + factors.rank());
  return result;
}

// On its way from one step to the next.
struct GroupState {
  GroupProblem problem;
  GroupFactorization factors;
};

// Where the basis comes from the weights, nothing of the calibration text is needed.
GroupSteps weight_steps(std::vector<GroupState>& states) {
  const auto state = [&states](const GroupJob& job) -> GroupState& {
    return states[static_cast<std::size_t>(job.index)];
  };
  return {{[state](const GroupJob& job) {
             state(job).problem =
                 group_problem(load_stacked_proj(job), load_metric(job), job.conversion.device);
           },
           [state](const GroupJob& job) {
             state(job).factors = solve_group(std::move(state(job).problem), job.group.rank);
           }},
          [state](GroupJob& job) {
            const GroupFactorization factors = std::move(state(job).factors);
            return convert_group(job, factors);
          }};
}

GroupResult convert_joint_group(GroupJob& job) {
  at::Tensor moment = measure_output_moment(job);
  return convert_group(job, factorize_outputs(load_stacked_proj(job), std::move(moment),
                                              job.group.rank, job.conversion.device));
}

KvPlan plan_commonkv(const PlanRequest& request) {
  return make_latent_plan(request, plan_commonkv_groups);
}

double least_kept_ratio(const PlanRequest& request) {
  return least_latent_kept_ratio(request, plan_commonkv_groups);
}

void convert_commonkv(ConversionJob& job) {
  if (job.settings.own<LatentSettings>().factor == Factor::kJoint) {
    convert_latent_groups(job, {{}, convert_joint_group});
    return;
  }
  std::vector<GroupState> states(job.result.plan.groups.size());
  convert_latent_groups(job, weight_steps(states));
}

void fill_commonkv_table(PlanTable& table, const PlanRequest& request) {
  add_latent_rows(table, request);
  if (table.plan.groups.empty()) {
    return;
  }
  const LatentSettings& own = request.settings.own<LatentSettings>();
  const double width = own.rank * static_cast<double>(request.config.hidden_size);
  const double plain = 2 * static_cast<double>(request.config.kv_dim());
  table.notes.push_back(
      fmt::format("a latent of {:g} x hidden_size is {:.2f}x a plain layer's KV ({:.0f} channels "
                  "against {:.0f})",
                  own.rank, width / plain, width, plain));
  if (own.merge == MergeRule::kNone) {
    table.notes.push_back("nothing is merged: every layer stores a latent per token");
    return;
  }
  const int num_layers = table.plan.groups.front().num_layers;
  table.notes.push_back(
      fmt::format("merging {} layers into one latent reduces it to {:.2f}x their plain KV",
                  num_layers, width / (plain * num_layers)));
  table.notes.push_back(fmt::format(
      "for kept_ratio {:g} at {} tokens, {:.1f} % of the tokens outside sinks and window stay "
      "unmerged, as {}",
      request.settings.kept_ratio, table.context, 100 * table.unmerged_share,
      table.plan.compression.unmerged == UnmergedForm::kPlain ? "plain KV"
                                                              : "one latent per layer"));
}

}  // namespace

const Method kCommonKv = {.name = "commonkv",
                          .options = {rank_options, latent_options},
                          .apply_paper_preset = apply_commonkv_preset,
                          .fix_settings = fix_latent_settings,
                          .make_plan = plan_commonkv,
                          .convert = convert_commonkv,
                          .fill_table = fill_commonkv_table,
                          .factor_needs = latent_needs,
                          .exact_tokens = latent_exact_tokens,
                          .least_kept_ratio = least_kept_ratio,
                          .rank = latent_rank,
                          .served = &kServedLatents};

}  // namespace kvc
