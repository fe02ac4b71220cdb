#include "convert/latent/latent_conversion.h"

#include "convert/latent/kept_range.h"
#include "convert/latent/merge_weights.h"
#include "convert/stage_pipeline.h"
#include "core/progress.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

constexpr std::int64_t kGroupsAhead = 3;  // one in each step, so that none waits for another

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

LayerStreamOptions stream_options(const ConversionJob& job) {
  LayerStreamOptions options;
  options.place.device = job.device;
  options.spill_directory = job.directory;
  return options;
}

void complete_report(GroupReport& report, const KvPlan& plan, int index, KvDtype dtype) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  const TokenBytes bytes = token_bytes(plan, index, dtype);
  report.group = index;
  report.first_layer = group.first_layer;
  report.num_layers = group.num_layers;
  report.bytes_per_token_plain = static_cast<double>(bytes.plain);
  report.bytes_per_token_merged = static_cast<double>(bytes.merged);
}

std::vector<GroupReport> convert_latent_groups(ConversionJob& job, const GroupSteps& steps) {
  set_merge_weights(job);
  LayerStream stream(job.checkpoint, job.config, job.tokens, stream_options(job));
  std::vector<GroupReport> reports;
  const auto count = static_cast<std::int64_t>(job.plan.groups.size());
  Progress progress("factorise", count);
  const auto group_job = [&](std::int64_t index) {
    return GroupJob{job, stream, static_cast<int>(index),
                    job.plan.groups[static_cast<std::size_t>(index)]};
  };
  std::vector<StageFunction> stages;
  for (const auto& step : steps.ahead) {
    stages.emplace_back(
        [&](std::int64_t index) { on_own_stream(job.device, [&] { step(group_job(index)); }); });
  }
  (void)job.checkpoint.hash();  // found once, before threads ask for it
  run_pipeline(count, job.device.is_cpu() ? 1 : kGroupsAhead, stages, [&](std::int64_t index) {
    GroupJob current = group_job(index);
    stream.advance(current.group.first_layer - stream.next_layer(), [](const LayerActivations&) {});
    const GroupResult result = steps.convert(current);
    job.factors.add(result.tensors);
    reports.push_back(result.report);
    complete_report(reports.back(), job.plan, current.index, cache_dtype(job.config));
    progress.advance();
  });
  return reports;
}

}  // namespace kvc
