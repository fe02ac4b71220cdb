#include "convert/convert.h"

#include <c10/core/GradMode.h>

#include "convert/methods/methods.h"
#include "convert/plan.h"
#include "core/error.h"
#include "core/output.h"
#include "core/statistics_file.h"
#include "model/compute_place.h"
#include "model/config.h"

namespace kvc {
namespace {

void check_inputs(const ConvertInputs& inputs, const ConvertSettings& settings,
                  const ModelConfig& config) {
  KVC_CHECK(!needs_calibration(settings) || !inputs.calibration.empty(),
            "--factor whitened needs a calibration file");
  KVC_CHECK(!needs_fisher(settings) || !inputs.fisher.empty(),
            "these settings need Fisher information (fisher.h5)");
  const StatisticsNeeds needs = statistics_needs(config, settings);
  KVC_CHECK(needs.joint_layers == 0 || !inputs.covariance.empty(),
            "these settings need the covariance of keys and values (covariance.h5)");
  KVC_CHECK(!needs.gradient_metric || !inputs.metric.empty(),
            "these settings need the gradient metric of keys and values (metric.h5)");
}

// The inputs, read and checked against each other.
ConversionJob open_job(const ConvertInputs& inputs, const ConvertSettings& settings,
                       const std::filesystem::path& directory) {
  Checkpoint checkpoint = Checkpoint::open(inputs.checkpoint);
  ModelConfig config = read_checked_model_config(checkpoint);
  TokenSet tokens = read_token_set(inputs.tokens, config.vocab_size);
  check_inputs(inputs, settings, config);
  FisherInformation fisher;
  if (needs_fisher(settings)) {
    fisher = read_fisher(inputs.fisher, checkpoint.hash(), config.num_layers, config.kv_dim());
  }
  return {settings,
          inputs,
          std::move(checkpoint),
          std::move(config),
          std::move(tokens),
          std::move(fisher),
          compute_device(settings.device),
          directory,
          FactorSpill(directory)};
}

// Fisher information summed over channels decides ranks, where it is measured.
KvPlan final_plan(const ConversionJob& job) {
  const std::vector<double>& channel = job.fisher.channel;
  if (channel.empty()) {
    return job.inputs.plan ? *job.inputs.plan
                           : make_plan(job.config, job.settings, job.inputs.force);
  }
  const auto kv_dim = static_cast<std::size_t>(job.config.kv_dim());
  std::vector<double> scores(channel.size() / kv_dim, 0.0);  // [num_layers, 2]
  for (std::size_t i = 0; i < channel.size(); ++i) {
    scores[i / kv_dim] += channel[i];
  }
  return make_plan(job.config, job.settings, job.inputs.force, &scores);
}

}  // namespace

Provenance conversion_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                                 const ConvertSettings& settings) {
  Provenance provenance;
  provenance.kind = "conversion";
  provenance.checkpoint_hash = checkpoint.hash();
  provenance.tokens_hash = tokens.hash();
  provenance.options = to_json(settings);
  return provenance;
}

void convert(const ConvertInputs& inputs, const ConvertSettings& settings) {
  const c10::NoGradGuard no_grad;
  check_output(inputs.out, inputs.force);
  OutputDirectory output(inputs.out, inputs.force);
  ConversionJob job = open_job(inputs, settings, output.path());
  job.result.plan = final_plan(job);
  find_method(settings.method).convert(job);
  job.factors.write();
  job.result.settings = to_json(settings);
  job.result.calibration_hashes = job.tokens.source_hashes;
  job.result.provenance = conversion_provenance(job.checkpoint, job.tokens, settings);
  write_conversion(output.path(), job.result);
  output.commit();
}

}  // namespace kvc
