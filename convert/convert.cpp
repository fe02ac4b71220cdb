#include "convert/convert.h"

#include <c10/core/GradMode.h>

#include "convert/factor_spill.h"
#include "convert/kept_range.h"
#include "convert/merge_weights.h"
#include "convert/methods/methods.h"
#include "convert/symmetric_eigen.h"
#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "core/statistics_file.h"

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

void set_merge_weights(KvPlan& plan, const Checkpoint& checkpoint, const TokenSet& tokens,
                       const FisherInformation& fisher, std::uint64_t seed) {
  std::vector<double> scores;
  if (plan.policy.rule == MergeRule::kFisher) {
    scores = fisher.score;
  } else if (plan.policy.rule == MergeRule::kSensitivity) {
    scores = sensitivity_scores(checkpoint, tokens, seed);
  } else {
    return;
  }
  for (LatentGroup& group : plan.groups) {
    group.merge_weights = merge_weights(group, scores);
  }
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
  KvPlan plan = make_plan(sources.config, settings, force, scores.empty() ? nullptr : &scores);
  set_merge_weights(plan, sources.checkpoint, sources.tokens, sources.fisher, settings.seed);
  return plan;
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

// Factorises group after group; lowers the plan's ranks to the effective ones.
std::vector<GroupReport> convert_groups(const Sources& sources, const ConvertInputs& inputs,
                                        const ConvertSettings& settings, KvPlan& plan,
                                        const std::filesystem::path& directory) {
  const at::Device device = factor_device(settings.device);
  LayerStreamOptions options;
  options.spill_directory = directory;
  LayerStream stream(sources.checkpoint, sources.config, sources.tokens, options);
  FactorSpill spill(directory);
  std::vector<GroupReport> reports;
  Progress progress("factorise", static_cast<std::int64_t>(plan.groups.size()));
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    LatentGroup& group = plan.groups[i];
    stream.advance(group.first_layer - stream.next_layer(), [](const LayerActivations&) {});
    const int index = static_cast<int>(i);
    GroupJob job{sources.checkpoint,
                 sources.config,
                 settings,
                 inputs.calibration,
                 sources.fisher.channel,
                 device,
                 stream,
                 index,
                 group};
    const GroupResult result = find_method(settings.method).convert_group(job);
    spill.add(result.tensors);
    reports.push_back(result.report);
    complete_report(reports.back(), plan, index, cache_dtype(sources.config));
    progress.advance();
  }
  spill.assemble();
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
  conversion.report = convert_groups(sources, inputs, settings, conversion.plan, output.path());
  conversion.settings = to_json(settings);
  conversion.calibration_hashes = sources.tokens.source_hashes;
  conversion.provenance = conversion_provenance(sources.checkpoint, sources.tokens, settings);
  write_conversion(output.path(), conversion);
  output.commit();
}

}  // namespace kvc
