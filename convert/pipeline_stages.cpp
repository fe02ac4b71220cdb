#include "convert/pipeline.h"

#include "calibrate/calibrate.h"
#include "calibrate/covariance.h"
#include "core/error.h"
#include "core/progress.h"
#include "fisher/fisher.h"
#include "fisher/metric.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

// Runs `stage` unless an earlier run did what it would do.
template <typename Stage>
void run_stage(const char* name, const fs::path& artifact, bool is_done, const Stage& stage) {
  if (is_done) {
    log_info(fmt::format("{}: reused from an earlier run", name));
    return;
  }
  if (fs::exists(artifact)) {
    log_info(fmt::format("{}: {} does not match this run, or is damaged, and is made again", name,
                         artifact.string()));
  }
  stage();
}

template <typename Stage>
void run_stage(const char* name, const fs::path& artifact, const Provenance& expected,
               const Stage& stage) {
  run_stage(name, artifact, artifact_matches(artifact, expected), stage);
}

// The statistics of adjacent layers together, where the method needs them.
void run_joint_stages(const PipelineOptions& options, const Checkpoint& checkpoint,
                      const TokenSet& tokens, const StatisticsNeeds& needs,
                      const ComputePlace& place, const fs::path& work, ConvertInputs& inputs) {
  if (needs.joint_layers == 0) {
    return;
  }
  const JointOptions joint{needs.joint_layers, options.settings.sink_tokens};
  check_calibration_tokens(num_counted(tokens, joint.sink_tokens),
                           static_cast<std::int64_t>(tokens.sequences.size()), joint.sink_tokens,
                           needs.least_tokens);
  inputs.covariance = work / "covariance.h5";
  const CovarianceOptions covariance_options{joint, needs.attention_metric};
  run_stage("covariance", inputs.covariance,
            covariance_provenance(checkpoint, tokens, covariance_options, place), [&] {
              covariance(checkpoint, tokens, covariance_options, inputs.covariance, true, place);
            });
  if (needs.gradient_metric) {
    inputs.metric = work / "metric.h5";
    const MetricOptions metric_options{joint, options.settings.seed};
    run_stage("metric", inputs.metric, metric_provenance(checkpoint, tokens, metric_options, place),
              [&] { metric(checkpoint, tokens, metric_options, inputs.metric, true, place); });
  }
}

}  // namespace

std::int64_t num_counted(const TokenSet& tokens, std::int64_t sink_tokens) {
  std::int64_t count = 0;
  for (const auto& sequence : tokens.sequences) {
    count += std::max<std::int64_t>(0, static_cast<std::int64_t>(sequence.size()) - sink_tokens);
  }
  return count;
}

void check_calibration_tokens(std::int64_t count, std::int64_t num_sequences,
                              std::int64_t sink_tokens, std::int64_t least) {
  KVC_CHECK(count >= least,
            "the calibration text has {} tokens after the first {} of every sequence; the number "
            "of channels coded together requires {}. Give a longer text with --calibration, or "
            "more of it with --num-sequences {}, or use a smaller --scope or --group",
            count, sink_tokens, least,
            num_sequences == 0
                ? 0
                : (least * num_sequences + count) / std::max<std::int64_t>(1, count) + 1);
}

std::filesystem::path run_stages(const PipelineOptions& options, const Original& original,
                                 const KvPlan& plan, const TokenSet& tokens,
                                 const StagePaths& paths) {
  const auto& [checkpoint, config] = original;
  const ConvertSettings& settings = options.settings;
  ConvertInputs inputs;
  inputs.checkpoint = options.checkpoint;
  inputs.tokens = paths.tokens / "tokens.h5";
  inputs.out = paths.conversion / "conversion";
  inputs.state = paths.conversion / "distillation.safetensors";
  inputs.plan = plan;
  inputs.force = true;
  const ComputePlace place = statistics_place(settings.device);
  if (needs_calibration(settings)) {
    inputs.calibration = paths.statistics / "calibration.h5";
    run_stage("calibration", inputs.calibration, calibration_provenance(checkpoint, tokens, place),
              [&] { calibrate(checkpoint, tokens, inputs.calibration, true, place); });
  }
  if (needs_fisher(settings)) {
    inputs.fisher = paths.statistics / "fisher.h5";
    run_stage("Fisher information", inputs.fisher, fisher_provenance(checkpoint, tokens, place),
              [&] { fisher(checkpoint, tokens, inputs.fisher, true, place); });
  }
  run_joint_stages(options, checkpoint, tokens, statistics_needs(config, settings), place,
                   paths.statistics, inputs);
  const fs::path converted = inputs.out / "conversion.h5";
  const bool is_converted =
      artifact_matches(converted, conversion_provenance(checkpoint, tokens, settings)) &&
      is_whole_conversion(inputs.out);
  run_stage("conversion", converted, is_converted, [&] { convert(inputs, settings); });
  return inputs.out;
}

}  // namespace kvc
