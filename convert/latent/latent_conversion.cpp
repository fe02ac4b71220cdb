#include "convert/latent/latent_conversion.h"

#include "convert/latent/kept_range.h"
#include "convert/latent/merge_weights.h"
#include "core/progress.h"

namespace kvc {
namespace {

void set_merge_weights(ConversionJob& job) {
  std::vector<double> scores;
  if (job.plan.policy.rule == MergeRule::kFisher) {
    scores = job.fisher.score;
  } else if (job.plan.policy.rule == MergeRule::kSensitivity) {
    scores = sensitivity_scores(job.checkpoint, job.tokens, job.settings.seed);
  } else {
    return;
  }
  for (LatentGroup& group : job.plan.groups) {
    group.merge_weights = merge_weights(group, scores);
  }
}

}  // namespace

void complete_report(GroupReport& report, const KvPlan& plan, int index, KvDtype dtype) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  const TokenBytes bytes = token_bytes(plan, index, dtype);
  report.group = index;
  report.first_layer = group.first_layer;
  report.num_layers = group.num_layers;
  report.bytes_per_token_plain = static_cast<double>(bytes.plain);
  report.bytes_per_token_merged = static_cast<double>(bytes.merged);
}

std::vector<GroupReport> convert_latent_groups(ConversionJob& job,
                                               GroupResult (*convert_group)(GroupJob& job)) {
  set_merge_weights(job);
  LayerStreamOptions options;
  options.spill_directory = job.directory;
  LayerStream stream(job.checkpoint, job.config, job.tokens, options);
  std::vector<GroupReport> reports;
  Progress progress("factorise", static_cast<std::int64_t>(job.plan.groups.size()));
  for (std::size_t i = 0; i < job.plan.groups.size(); ++i) {
    LatentGroup& group = job.plan.groups[i];
    stream.advance(group.first_layer - stream.next_layer(), [](const LayerActivations&) {});
    const int index = static_cast<int>(i);
    GroupJob group_job{job, stream, index, group};
    const GroupResult result = convert_group(group_job);
    job.factors.add(result.tensors);
    reports.push_back(result.report);
    complete_report(reports.back(), job.plan, index, cache_dtype(job.config));
    progress.advance();
  }
  return reports;
}

}  // namespace kvc
