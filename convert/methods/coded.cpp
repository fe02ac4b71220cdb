// Coded caches (ours): principal coefficients of keys and values under a sensitivity metric, each with a
// fixed number of bits, shared out over the whole model.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "convert/coded/block_fit.h"
#include "convert/coded/block_layout.h"
#include "convert/coded/coded_plan.h"
#include "convert/coded/coded_settings.h"
#include "convert/coded/layer_forms.h"
#include "convert/methods/methods.h"
#include "convert/plan.h"
#include "convert/served_kinds.h"
#include "core/error.h"
#include "core/kv_plan_bytes.h"
#include "core/progress.h"
#include "model/cache_plan.h"
#include "model/layer_stream.h"

namespace kvc {
namespace {

constexpr std::int64_t kSamples = 4096;  // tokens that steps are chosen and judged by
constexpr std::int64_t kGainBits = 8;
// Bits of a block that bear a gain in any case (docs/quality.md, gains).
constexpr std::int64_t kBitsWithGain = 4 * kGainBits;
// All later tokens read a text's first one, and its keys and values lie far from all others': where it is coded as they
// are, it counts as a 16th of its sequence. As one token among thousands it would be clipped.
constexpr std::int64_t kShareOfFirst = 16;

// Sequences of about kSamples tokens.
TokenSet sample_tokens(const TokenSet& tokens) {
  TokenSet sample = tokens;
  const auto count = static_cast<std::int64_t>(tokens.sequences.size());
  const std::int64_t mean_length = std::max<std::int64_t>(1, tokens.num_tokens() / count);
  sample.sequences.clear();
  for (const std::size_t place :
       spread_sequences(tokens, static_cast<std::size_t>(kSamples / mean_length))) {
    sample.sequences.push_back(tokens.sequences[place]);
  }
  return sample;
}

// The sampled tokens behind the sinks; moves the stream behind the run.
RunSamples read_samples(const ConversionJob& job, LayerStream& stream, const LayerRun& run) {
  const bool has_first = codes_first_token(job.result.plan);
  std::vector<at::Tensor> rows, firsts;
  std::vector<at::Tensor> parts;
  stream.advance(run.num_layers, [&](const LayerActivations& activations) {
    parts.push_back(activations.weights.k_norm.over_heads(activations.key).flatten(1));
    parts.push_back(activations.value.flatten(1));
    if (activations.layer + 1 < run.end()) {
      return;
    }
    const at::Tensor all = at::cat(parts, 1).to(at::kFloat);
    parts.clear();
    const std::int64_t apart =
        std::min<std::int64_t>(has_first ? 1 : job.settings.sink_tokens, all.size(0));
    rows.push_back(all.narrow(0, apart, all.size(0) - apart).cpu());
    if (apart == 0) {
      rows.push_back(all.narrow(0, 0, 1).expand({all.size(0) / kShareOfFirst, -1}).cpu());
    }
    firsts.push_back(all[0].cpu());
  });
  return {at::cat(rows), has_first ? at::stack(firsts).mean(0) : at::Tensor()};
}

std::deque<BlockFit> fit_blocks(ConversionJob& job) {
  std::deque<BlockFit> fits;
  const int run_layers = statistics_layers(job.settings, job.result.plan.coded);
  LayerStreamOptions options;
  options.place = statistics_place(job.device);
  options.batch_tokens = 1;
  options.spill_directory = job.directory;
  LayerStream stream(job.checkpoint, job.config, sample_tokens(job.tokens), options);
  Progress progress("code", static_cast<std::int64_t>(job.result.plan.coded.size()));
  for (const LayerRun& run : layer_runs(job.config, run_layers)) {
    const std::vector<CodedBlock> blocks = blocks_in(job.result.plan.coded, run);
    const RunStatistics statistics = read_run_statistics(job, run, *job.settings.cache_metric);
    for (const CodedBlock& block : blocks) {
      check_calibration_tokens(statistics, block, job.config);
    }
    const RunSamples samples = read_samples(job, stream, run);
    for (const CodedBlock& block : blocks) {
      fits.emplace_back(job, statistics, run, block, samples);
      progress.advance();
    }
  }
  return fits;
}

// The heads of a layer, of keys and of values apart, take equally many of the bits that they have together.
void equalise_heads(const std::vector<CodedBlock>& blocks, const std::vector<WidthCurves>& curves,
                    BitAllocation& allocation) {
  for (std::size_t first = 0, last = 0; first < blocks.size(); first = last) {
    std::int64_t bits = 0;
    while (last < blocks.size() && blocks[last].first_layer == blocks[first].first_layer &&
           blocks[last].part == blocks[first].part) {
      bits = std::accumulate(allocation.bits[last].begin(), allocation.bits[last].end(), bits);
      ++last;
    }
    for (std::size_t i = first; i < last && last - first > 1; ++i) {
      allocation.bits[i] =
          allocate_bits({curves[i]}, bits / static_cast<std::int64_t>(last - first)).bits.front();
    }
  }
}

// Shares out what the plan's budget leaves to codes. Returns the price of a bit.
double share_bits(const ConversionJob& job, const std::vector<WidthCurves>& curves,
                  std::deque<BlockFit>& fits) {
  KvPlan plan = job.result.plan;
  for (std::size_t i = 0; i < fits.size(); ++i) {
    plan.coded[i].gain = fits[i].block().gain;
  }
  const std::int64_t budget = std::max(coded_bit_budget(job.config, job.settings, plan),
                                       least_coded_bits(job.config, job.settings, plan));
  BitAllocation allocation = allocate_bits(curves, budget);
  if (job.settings.own<CodedSettings>().head_bits == HeadBits::kEqual) {
    equalise_heads(plan.coded, curves, allocation);
  }
  for (std::size_t i = 0; i < fits.size(); ++i) {
    fits[i].set_bits(allocation.bits[i]);
  }
  return allocation.price;
}

// A block has gains where they cost a quarter of its bits or less: text unlike the calibration's lies outside of what steps
// reach without them, which calibration text does not show. Narrower blocks have them where they save more than their
// eight bits would elsewhere. Where a text's first token is a code, every block has them: all later tokens read it, and it is
// far from the mean where a text begins with another token than the calibration's.
void choose_gains(const ConversionJob& job, double price, std::deque<BlockFit>& fits) {
  for (BlockFit& fit : fits) {
    const bool worth =
        fit.fitted_error(false) - fit.fitted_error(true) > price * static_cast<double>(kGainBits);
    fit.set_gain(codes_first_token(job.result.plan) || worth ||
                 fit.block().bits() >= kBitsWithGain ||
                 job.settings.own<CodedSettings>().gain == GainChoice::kOn);
  }
}

void convert_coded_blocks(ConversionJob& job) {
  if (parse_coded_form(job.settings.own<CodedSettings>().form).keys == KeyTransform::kAuto) {
    choose_forms(job);
  }
  std::deque<BlockFit> fits = fit_blocks(job);
  std::vector<WidthCurves> curves;
  for (const BlockFit& fit : fits) {
    curves.push_back(fit.curves());
  }
  const double price = share_bits(job, curves, fits);
  if (job.settings.own<CodedSettings>().gain == GainChoice::kAuto) {
    choose_gains(job, price, fits);
    share_bits(job, curves, fits);
  }
  const KvDtype dtype = cache_dtype(job.config);
  job.result.plan.coded.clear();
  for (const BlockFit& fit : fits) {
    job.result.plan.coded.push_back(fit.block());
    job.factors.add(fmt::format("kvconvert.coded.{}.", job.result.plan.coded.size() - 1),
                    fit.tensors());
    CodedReport& report = job.result.coded.emplace_back(fit.report());
    report.bytes_per_token_plain =
        static_cast<double>(num_channels(fit.block(), job.config) * bytes_per_element(dtype));
    report.bytes_per_token = static_cast<double>(report.bits) / 8 + (report.gain ? 1 : 0);
  }
  job.result.plan.check();
  const double kept =
      planned_kept_ratio(job.result.plan, plan_context(job.config, job.settings), dtype);
  if (const std::string capped = capped_bits_note(kept, job.settings); !capped.empty()) {
    log_info(capped);
  }
}

void refuse_preset(ConvertSettings&) {
  fail_usage("--preset paper: coded has no paper; leave --preset out");
}

void fix_coded(ConvertSettings& settings) {
  settings.cache_metric = settings.cache_metric.value_or(CacheMetric::kFisher);
  CodedSettings& own = settings.own<CodedSettings>();
  if (own.form.empty()) {
    const bool by_group =
        own.scope.find("group") != std::string::npos;  // which has form full alone
    const bool fast = own.prefer == Preference::kSpeed && !by_group;
    own.form = fast || own.products > 0 ? "auto" : "full";
  }
  KVC_CHECK_USAGE(own.products == 0 || own.form == "auto",
                  "--products {}: only --form auto shares products out, found --form {}",
                  own.products, own.form);
  KVC_CHECK_USAGE(settings.prefill != PrefillMode::kTruncated,
                  "--prefill truncated: does not apply to the method coded, which has no latents; "
                  "use exact or coded");
}

StatisticsNeeds needs(const ModelConfig& config, const ConvertSettings& settings) {
  const std::vector<CodedBlock> blocks =
      block_layout(config, settings, choose_scopes(config, settings));
  StatisticsNeeds needs{.joint_layers = statistics_layers(settings, blocks),
                        .attention_metric = needs_attention(*settings.cache_metric),
                        .gradient_metric = needs_gradient(*settings.cache_metric)};
  for (const CodedBlock& block : blocks) {
    needs.least_tokens = std::max(needs.least_tokens, least_calibration_tokens(block, config));
  }
  return needs;
}

// Exact tokens are taken from the rate of all others: in short texts that costs more than they bring (docs/quality.md).
ExactTokens exact_tokens(const ConvertSettings& settings, std::int64_t context) {
  constexpr std::int64_t kLong = 2048;
  const bool is_long = context >= kLong;
  // Prompts through codes have a mean of their own for the first token.
  const bool has_sinks = is_long && settings.prefill != PrefillMode::kCoded;
  return {.sink = has_sinks ? 4 : 0, .window = is_long ? 32 : 0, .block = 64};
}

}  // namespace

const Method kCoded = {
    .name = "coded",
    .options = {coded_options},
    .apply_paper_preset = refuse_preset,
    .fix_settings = fix_coded,
    .make_plan = make_coded_plan,
    .convert = convert_coded_blocks,
    .fill_table = fill_coded_table,
    .needs = needs,
    .exact_tokens = exact_tokens,
    .least_kept_ratio = least_coded_kept_ratio,
    .calibration = {.thorough_rows = 40, .knee_rows = 10, .row_len = 1024, .with_own_text = true},
    .served = &kServedCodes};

}  // namespace kvc
