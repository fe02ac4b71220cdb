#include "convert/coded/coded_conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "convert/coded/block_fit.h"
#include "convert/coded/coded_plan.h"
#include "convert/coded/quantiser.h"
#include "convert/latent/kept_range.h"
#include "core/progress.h"
#include "model/cache_plan.h"
#include "model/layer_stream.h"

namespace kvc {
namespace {

constexpr std::int64_t kSamples = 4096;  // tokens that steps are chosen and judged by
constexpr std::int64_t kGainBits = 8;

// Sequences of about kSamples tokens, evenly spread.
TokenSet sample_tokens(const TokenSet& tokens) {
  TokenSet sample = tokens;
  const auto count = static_cast<std::int64_t>(tokens.sequences.size());
  const std::int64_t mean_length = std::max<std::int64_t>(1, tokens.num_tokens() / count);
  const std::int64_t wanted = std::clamp<std::int64_t>(kSamples / mean_length, 1, count);
  sample.sequences.clear();
  for (std::int64_t i = 0; i < wanted; ++i) {
    sample.sequences.push_back(tokens.sequences[static_cast<std::size_t>(i * count / wanted)]);
  }
  return sample;
}

// y of a run's layers for the sampled tokens behind the sinks; moves the stream behind the run.
at::Tensor read_samples(const ConversionJob& job, LayerStream& stream, const LayerRun& run) {
  std::vector<at::Tensor> rows;
  std::vector<at::Tensor> parts;
  stream.advance(run.num_layers, [&](const LayerActivations& activations) {
    parts.push_back(activations.weights.k_norm.over_heads(activations.key).flatten(1));
    parts.push_back(activations.value.flatten(1));
    if (activations.layer + 1 < run.end()) {
      return;
    }
    const at::Tensor all = at::cat(parts, 1).to(at::kFloat);
    parts.clear();
    const std::int64_t sinks = std::min(job.settings.sink_tokens, all.size(0));
    rows.push_back(all.narrow(0, sinks, all.size(0) - sinks).cpu());
  });
  return at::cat(rows);
}

std::vector<CodedBlock> blocks_in(const std::vector<CodedBlock>& blocks, const LayerRun& run) {
  std::vector<CodedBlock> inside;
  for (const CodedBlock& block : blocks) {
    if (block.first_layer >= run.first_layer && block.first_layer < run.end()) {
      inside.push_back(block);
    }
  }
  return inside;
}

std::deque<BlockFit> fit_blocks(ConversionJob& job) {
  std::deque<BlockFit> fits;
  const LayerScopes scopes = choose_scopes(job.config, job.settings);
  LayerStreamOptions options;
  options.place.device = job.device;
  options.batch_tokens = 1;
  options.spill_directory = job.directory;
  LayerStream stream(job.checkpoint, job.config, sample_tokens(job.tokens), options);
  Progress progress("code", static_cast<std::int64_t>(job.plan.coded.size()));
  for (const LayerRun& run : statistics_runs(job.config, job.settings, scopes)) {
    const std::vector<CodedBlock> blocks = blocks_in(job.plan.coded, run);
    const RunStatistics statistics = read_run_statistics(job, run, *job.settings.cache_metric);
    for (const CodedBlock& block : blocks) {
      check_calibration_tokens(statistics, block, job.config);
    }
    const at::Tensor samples = read_samples(job, stream, run);
    for (const CodedBlock& block : blocks) {
      fits.emplace_back(job, statistics, run, block, samples);
      progress.advance();
    }
  }
  return fits;
}

// Shares out what the plan's budget leaves to codes. Returns the price of a bit.
double share_bits(const ConversionJob& job, const std::vector<WidthCurves>& curves,
                  std::deque<BlockFit>& fits) {
  KvPlan plan = job.plan;
  for (std::size_t i = 0; i < fits.size(); ++i) {
    plan.coded[i].gain = fits[i].block().gain;
  }
  const std::int64_t budget = std::max(coded_bit_budget(job.config, job.settings, plan),
                                       least_coded_bits(job.config, job.settings, plan));
  const BitAllocation allocation = allocate_bits(curves, budget);
  for (std::size_t i = 0; i < fits.size(); ++i) {
    fits[i].set_bits(allocation.bits[i]);
  }
  return allocation.price;
}

// A block has gains where they save more than their eight bits would elsewhere.
void choose_gains(const ConversionJob& job, double price, std::deque<BlockFit>& fits) {
  for (BlockFit& fit : fits) {
    const bool worth =
        fit.fitted_error(false) - fit.fitted_error(true) > price * static_cast<double>(kGainBits);
    fit.set_gain(job.settings.coded.gain == GainChoice::kOn || worth);
  }
}

}  // namespace

std::vector<GroupReport> convert_coded_blocks(ConversionJob& job) {
  std::deque<BlockFit> fits = fit_blocks(job);
  std::vector<WidthCurves> curves;
  for (const BlockFit& fit : fits) {
    curves.push_back(fit.curves());
  }
  const double price = share_bits(job, curves, fits);
  if (job.settings.coded.gain == GainChoice::kAuto) {
    choose_gains(job, price, fits);
    share_bits(job, curves, fits);
  }
  const KvDtype dtype = cache_dtype(job.config);
  job.plan.coded.clear();
  for (const BlockFit& fit : fits) {
    job.plan.coded.push_back(fit.block());
    job.factors.add(fmt::format("kvconvert.coded.{}.", job.plan.coded.size() - 1), fit.tensors());
    CodedReport& report = job.coded_report.emplace_back(fit.report());
    report.bytes_per_token_plain =
        static_cast<double>(num_channels(fit.block(), job.config) * bytes_per_element(dtype));
    report.bytes_per_token = static_cast<double>(report.bits) / 8 + (report.gain ? 1 : 0);
  }
  job.plan.check();
  return {};
}

}  // namespace kvc
