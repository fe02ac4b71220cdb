#include "convert/latent/latent_conversion.h"

#include <algorithm>

#include "convert/latent/group_fit.h"
#include "convert/latent/group_svd.h"
#include "convert/latent/merging.h"
#include "convert/plan.h"
#include "convert/stage_pipeline.h"
#include "core/progress.h"
#include "core/statistics_file.h"
#include "model/cache_plan.h"
#include "model/tensor_names.h"

namespace kvc {
namespace {

constexpr std::int64_t kGroupsAhead = 3;  // one in each step, so that none waits for another

void set_merge_weights(ConversionJob& job) {
  std::vector<double> scores;
  if (job.result.plan.compression.rule == MergeRule::kFisher) {
    scores = job.fisher.score;
  } else if (job.result.plan.compression.rule == MergeRule::kSensitivity) {
    scores = sensitivity_scores(job.checkpoint, job.tokens, job.settings.seed);
  } else {
    return;
  }
  for (LatentGroup& group : job.result.plan.groups) {
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

void convert_latent_groups(ConversionJob& job, const GroupSteps& steps) {
  set_merge_weights(job);
  LayerStream stream(job.checkpoint, job.config, job.tokens, stream_options(job));
  std::vector<GroupReport>& reports = job.result.report;
  const auto count = static_cast<std::int64_t>(job.result.plan.groups.size());
  Progress progress("factorise", count);
  const auto group_job = [&](std::int64_t index) {
    return GroupJob{job, stream, static_cast<int>(index),
                    job.result.plan.groups[static_cast<std::size_t>(index)]};
  };
  std::vector<StageFunction> stages;
  for (const auto& step : steps.ahead) {
    stages.emplace_back(
        [&](std::int64_t index) { on_own_stream(job.device, [&] { step(group_job(index)); }); });
  }
  (void)job.checkpoint.hash();  // found once, before threads ask for it
  run_overlapped(count, job.device.is_cpu() ? 1 : kGroupsAhead, stages, [&](std::int64_t index) {
    GroupJob current = group_job(index);
    stream.advance(current.group.first_layer - stream.next_layer(), [](const LayerActivations&) {});
    const GroupResult result = steps.convert(current);
    job.factors.add(result.tensors);
    reports.push_back(result.report);
    complete_report(reports.back(), job.result.plan, current.index, cache_dtype(job.config));
    progress.advance();
  });
}

at::Tensor load_projection(const GroupJob& job, int layer, Projection projection) {
  const ProjectionRows rows = projection == Projection::kKey
                                  ? key_rows(job.conversion.config, layer)
                                  : value_rows(job.conversion.config, layer);
  return load_rows(job.conversion.checkpoint, rows, job.conversion.config.hidden_size, at::kDouble);
}

at::Tensor load_stacked_proj(const GroupJob& job) {
  const std::int64_t kv_dim = job.conversion.config.kv_dim();
  at::Tensor stacked = at::empty(
      {2 * job.group.num_layers * kv_dim, job.conversion.config.hidden_size}, at::kDouble);
  std::int64_t row = 0;
  for (int member = 0; member < job.group.num_layers; ++member) {
    for (const Projection projection : {Projection::kKey, Projection::kValue}) {
      stacked.narrow(0, row, kv_dim)
          .copy_(load_projection(job, job.group.first_layer + member, projection));
      row += kv_dim;
    }
  }
  return stacked;
}

at::Tensor load_metric(const GroupJob& job) {
  if (job.conversion.settings.own<LatentSettings>().factor != Factor::kWhitened) {
    return {};
  }
  const std::int64_t hidden_size = job.conversion.config.hidden_size;
  at::Tensor moment = at::zeros({hidden_size, hidden_size}, at::kDouble);
  for (int member = 0; member < job.group.num_layers; ++member) {
    GramSum sum = read_gram(job.conversion.inputs.calibration, job.conversion.checkpoint.hash(),
                            job.group.first_layer + member, hidden_size);
    const at::Tensor gram = at::from_blob(sum.gram.data(), {hidden_size, hidden_size}, at::kDouble);
    moment.add_(gram, 1.0 / static_cast<double>(sum.num_tokens));
  }
  return damped_metric(std::move(moment));
}

at::Tensor measure_output_moment(GroupJob& job) {
  const std::int64_t kv_dim = job.conversion.config.kv_dim();
  const std::int64_t rows = 2 * job.group.num_layers * kv_dim;
  at::Tensor moment =
      at::zeros({rows, rows}, at::TensorOptions(job.conversion.device).dtype(at::kDouble));
  at::Tensor stacked;
  std::int64_t num_tokens = 0;
  job.stream.peek(job.group.num_layers, [&](const LayerActivations& activations) {
    const int member = activations.layer - job.group.first_layer;
    const KeysValues exact = bias_free(activations);
    if (member == 0) {
      stacked = at::empty({exact.key.size(0), rows}, exact.key.options().dtype(at::kFloat));
    }
    stacked.narrow(1, 2 * member * kv_dim, kv_dim).copy_(exact.key);
    stacked.narrow(1, (2 * member + 1) * kv_dim, kv_dim).copy_(exact.value);
    if (member + 1 < job.group.num_layers) {
      return;
    }
    for (std::int64_t begin = 0; begin < stacked.size(0); begin += kSliceTokens) {
      const at::Tensor y =
          stacked.narrow(0, begin, std::min(kSliceTokens, stacked.size(0) - begin)).to(at::kDouble);
      moment.addmm_(y.t(), y);
    }
    num_tokens += stacked.size(0);
  });
  return moment.div_(static_cast<double>(num_tokens));
}

}  // namespace kvc
