// CommonKV: one factorisation for the stacked key and value projections of adjacent layers; the
// latents of a group become one per merged token.
#include <algorithm>
#include <numeric>

#include "convert/group_fit.h"
#include "convert/group_inputs.h"
#include "convert/group_svd.h"
#include "convert/layer_groups.h"
#include "convert/ls_encoder.h"
#include "convert/methods/methods.h"
#include "convert/rank_allocation.h"

namespace kvc {
namespace {

void apply_paper_preset(ConvertSettings& settings) {
  settings.factor = Factor::kPlain;
  settings.merge = MergeRule::kFisher;
  settings.granularity = Granularity::kGroup;
  settings.prefill = PrefillMode::kTruncated;
  settings.refit = false;
  settings.rank_multiple = 1;
  settings.ls_fisher_weights = false;
}

void fix_settings(ConvertSettings&) {}

double group_score(const LatentGroup& group, const std::vector<double>& fisher_scores) {
  const auto first = fisher_scores.begin() + 2 * group.first_layer;
  return std::accumulate(first, first + 2 * group.num_layers, 0.0);
}

std::vector<LatentGroup> plan_groups(const ModelConfig& config, const ConvertSettings& settings,
                                     const std::vector<double>* fisher_scores) {
  std::vector<LatentGroup> groups = group_layers(config, settings.layers_per_group);
  const std::int64_t multiple = rank_multiple(config, settings);
  const double width = settings.rank * static_cast<double>(config.hidden_size);
  std::vector<std::int64_t> caps;
  std::vector<double> scores;
  std::int64_t total = 0;
  for (LatentGroup& group : groups) {
    caps.push_back(std::min(config.hidden_size, 2 * group.num_layers * config.kv_dim()));
    group.rank = round_rank(width, multiple, caps.back());
    total += group.rank;
    scores.push_back(fisher_scores != nullptr ? group_score(group, *fisher_scores) : 0);
  }
  if (settings.rank_allocation == RankAllocation::kFisher && fisher_scores != nullptr) {
    const std::vector<std::int64_t> ranks = allocate_ranks(scores, total, caps, multiple);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i].rank = ranks[i];
    }
  }
  return groups;
}

GroupFactors factorize(GroupJob& job) {
  at::Tensor moment;
  if (job.settings.factor == Factor::kJoint) {
    moment = measure_output_moment(job);
  }
  const at::Tensor stacked = load_stacked_proj(job);
  return moment.defined()
             ? factorize_outputs(stacked, std::move(moment), job.group.rank, job.device)
             : factorize_group(stacked, load_metric(job), job.group.rank, job.device);
}

Merger make_merger(const GroupJob& job, const GroupFactors& factors) {
  Merger merger;
  if (job.settings.merge == MergeRule::kLs) {
    const at::Tensor weights =
        job.settings.ls_fisher_weights
            ? ls_channel_weights(job.group, job.fisher_channel, job.config.kv_dim())
            : at::Tensor();
    merger.encoder = ls_encoder(factors, weights);
  } else {
    merger.weights = job.group.merge_weights;
  }
  return merger;
}

GroupResult convert_group(GroupJob& job) {
  GroupFactors factors = factorize(job);
  job.group.rank = factors.rank();
  const Merger merger = make_merger(job, factors);
  GroupFit fit(job.group, job.config.kv_dim(), factors.latent_proj, factors.reconstruct_proj,
               merger);
  job.stream.advance(job.group.num_layers,
                     [&](const LayerActivations& activations) { fit.add(activations); });

  GroupResult result;
  const auto emit = [&](const char* name, const at::Tensor& tensor) {
    result.tensors.emplace_back(name, tensor.to(at::kFloat).contiguous());
  };
  emit("latent_proj", factors.latent_proj);
  emit("reconstruct_proj", factors.reconstruct_proj);
  if (merger.encoder.defined()) {
    emit("encoder", merger.encoder);
  }
  FitErrors merged;
  if (job.settings.refit) {
    const at::Tensor refitted = fit.refit();
    merged = fit.merged_errors(refitted);
    emit("merged_reconstruct_proj", refitted);
  } else if (job.settings.merge != MergeRule::kNone) {
    merged = fit.merged_errors(factors.reconstruct_proj);
  }
  const FitErrors unmerged = fit.unmerged_errors();
  GroupReport& report = result.report;
  report.rank = factors.rank();
  report.energy_kept = factors.energy_kept;
  report.optimum_error = factors.optimum_error;
  report.key_error = unmerged.key;
  report.value_error = unmerged.value;
  report.merged_key_error = merged.key;
  report.merged_value_error = merged.value;
  const double* s = factors.singular_values.const_data_ptr<double>();
  report.singular_values.assign(s, s + factors.rank());
  return result;
}

}  // namespace

const Method kCommonKv = {"commonkv", apply_paper_preset, fix_settings, plan_groups, convert_group};

}  // namespace kvc
