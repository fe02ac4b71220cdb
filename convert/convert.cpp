#include "convert/convert.h"

#include <c10/core/GradMode.h>

#include "convert/methods/methods.h"
#include "core/error.h"
#include "core/output.h"
#include "core/statistics_file.h"
#include "model/compute_place.h"
#include "model/config.h"

namespace kvc {
namespace {

// Sums over channels. [num_layers, 2]
std::vector<double> projection_scores(const FisherInformation& fisher, std::int64_t kv_dim) {
  std::vector<double> scores(fisher.channel.size() / static_cast<std::size_t>(kv_dim), 0.0);
  for (std::size_t i = 0; i < fisher.channel.size(); ++i) {
    scores[i / static_cast<std::size_t>(kv_dim)] += fisher.channel[i];
  }
  return scores;
}

// The inputs of a conversion, read and checked against each other.
struct Sources {
  Checkpoint checkpoint;
  ModelConfig config;
  TokenSet tokens;
  FisherInformation fisher;
};

Sources open_sources(const ConvertInputs& inputs, const ConvertSettings& settings) {
  Checkpoint checkpoint = Checkpoint::open(inputs.checkpoint);
  ModelConfig config = read_checked_model_config(checkpoint);
  TokenSet tokens = read_token_set(inputs.tokens, config.vocab_size);
  KVC_CHECK(!needs_calibration(settings) || !inputs.calibration.empty(),
            "--factor whitened needs a calibration file");
  KVC_CHECK(!needs_fisher(settings) || !inputs.fisher.empty(),
            "these settings need Fisher information (fisher.h5)");
  const StatisticsNeeds needs = statistics_needs(config, settings);
  KVC_CHECK(needs.joint_layers == 0 || !inputs.covariance.empty(),
            "these settings need the covariance of keys and values (covariance.h5)");
  KVC_CHECK(!needs.gradient_metric || !inputs.metric.empty(),
            "these settings need the gradient metric of keys and values (metric.h5)");
  FisherInformation fisher;
  if (needs_fisher(settings)) {
    fisher = read_fisher(inputs.fisher, checkpoint.hash(), config.num_layers, config.kv_dim());
  }
  return {std::move(checkpoint), std::move(config), std::move(tokens), std::move(fisher)};
}

KvPlan final_plan(const Sources& sources, const ConvertSettings& settings, bool force) {
  std::vector<double> scores;
  if (needs_fisher(settings)) {
    scores = projection_scores(sources.fisher, sources.config.kv_dim());
  }
  return make_plan(sources.config, settings, force, scores.empty() ? nullptr : &scores);
}

std::vector<GroupReport> convert_plan(const Sources& sources, const ConvertInputs& inputs,
                                      const ConvertSettings& settings, Conversion& conversion,
                                      const std::filesystem::path& directory) {
  FactorSpill factors(directory);
  ConversionJob job{sources.checkpoint, sources.config,          settings,
                    sources.tokens,     inputs.calibration,      inputs.covariance,
                    inputs.metric,      sources.fisher,          compute_device(settings.device),
                    directory,          conversion.plan,         factors,
                    conversion.fused,   conversion.distillation, inputs.state,
                    conversion.coded};
  std::vector<GroupReport> reports = find_method(settings.method).convert(job);
  factors.assemble();
  return reports;
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
  const Sources sources = open_sources(inputs, settings);
  OutputDirectory output(inputs.out, inputs.force);
  Conversion conversion;
  conversion.plan = final_plan(sources, settings, inputs.force);
  conversion.report = convert_plan(sources, inputs, settings, conversion, output.path());
  conversion.settings = to_json(settings);
  conversion.calibration_hashes = sources.tokens.source_hashes;
  conversion.provenance = conversion_provenance(sources.checkpoint, sources.tokens, settings);
  write_conversion(output.path(), conversion);
  output.commit();
}

}  // namespace kvc
