#include "convert/coded/coded_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "convert/coded/block_layout.h"
#include "convert/plan.h"
#include "core/arithmetic.h"
#include "core/error.h"
#include "core/kv_plan_bytes.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

constexpr std::int64_t kChannelsPerBit =
    16;  // a cache of fewer bits than one in so many is refused

std::int64_t total_channels(const ModelConfig& config) {
  return 2 * config.num_layers * config.kv_dim();
}

// The widest of `widths` for as many channels as `bits` reach, none for the others.
void spread_bits(CodedBlock& block, std::int64_t bits, std::int64_t channels,
                 const std::vector<int>& widths) {
  block.coefficients = {};
  for (std::size_t i = 1; i < widths.size(); ++i) {
    const std::int64_t lower = widths[i - 1], width = widths[i];
    const bool last = i + 1 == widths.size();
    if (!last && bits >= width * channels) {
      continue;
    }
    const std::int64_t wide =
        std::clamp<std::int64_t>((bits - lower * channels) / (width - lower), 0, channels);
    block.coefficients[static_cast<std::size_t>(width)] = wide;
    if (lower > 0) {
      block.coefficients[static_cast<std::size_t>(lower)] = channels - wide;
    }
    break;
  }
  if (block.num_coefficients() == 0) {
    block.coefficients[static_cast<std::size_t>(widths[1])] = 1;
  }
}

KvPlan raw_plan(const ModelConfig& config, const ConvertSettings& settings) {
  KvPlan plan = base_plan(config, settings);
  plan.compression.rule = MergeRule::kNone;
  plan.compression.unmerged = UnmergedForm::kPlain;
  plan.compression.target_kept_ratio = settings.kept_ratio;
  plan.compression.sink_tokens = settings.sink_tokens;
  plan.compression.window_tokens = settings.window_tokens;
  plan.compression.block_tokens = kQuantisedTokens;
  plan.compression.prefill = settings.prefill;
  plan.coded = block_layout(config, settings, choose_scopes(config, settings));
  std::fill(plan.layers.begin(), plan.layers.end(), KvSource::kCoded);
  return plan;
}

void spread_budget(const ModelConfig& config, const ConvertSettings& settings, KvPlan& plan) {
  const std::int64_t budget =
      std::max(coded_bit_budget(config, settings, plan), least_coded_bits(config, settings, plan));
  const std::vector<int>& widths = widths_of(settings.own<CodedSettings>().widths);
  std::int64_t channels_before = 0, bits_before = 0;
  for (CodedBlock& block : plan.coded) {  // what the blocks before did not spend goes on
    const std::int64_t channels = num_channels(block, config);
    channels_before += channels;
    const double share =
        static_cast<double>(channels_before) / static_cast<double>(total_channels(config));
    const auto due = static_cast<std::int64_t>(share * static_cast<double>(budget) + 0.5);
    spread_bits(block, due - bits_before, channels, widths);
    bits_before += block.bits();
  }
}

bool reachable(const ModelConfig& config, const ConvertSettings& settings) {
  const KvPlan plan = raw_plan(config, settings);
  return tokens_in_blocks(plan, plan_context(config, settings)) > 0 &&
         coded_bit_budget(config, settings, plan) >= least_coded_bits(config, settings, plan);
}

// The nearest settings that work, each changing one thing.
std::string nearest_settings(const ModelConfig& config, const ConvertSettings& settings) {
  std::vector<std::string> ways;
  ConvertSettings other = settings;
  for (int thousandths = static_cast<int>(settings.kept_ratio * 1000) + 1; thousandths < 1000;
       ++thousandths) {
    other.kept_ratio = thousandths / 1000.0;
    if (reachable(config, other)) {
      ways.push_back(fmt::format("--kept-ratio {}", other.kept_ratio));
      break;
    }
  }
  other = settings;
  other.sink_tokens = 0;  // the blocks then begin where the text does
  if (settings.sink_tokens > 0 && reachable(config, other)) {
    ways.emplace_back("--sink 0");
  }
  other = settings;
  while (other.window_tokens > 0) {
    other.window_tokens /= 2;
    if (reachable(config, other)) {
      ways.push_back(fmt::format("--window {}", other.window_tokens));
      break;
    }
  }
  other = settings;
  for (other.context = 2 * plan_context(config, settings);
       other.context <= config.max_position_embeddings; other.context *= 2) {
    if (reachable(config, other)) {
      ways.push_back(fmt::format("--context {} if texts are that long", other.context));
      break;
    }
  }
  ways.emplace_back("--force to convert anyway");
  return fmt::format("{}", fmt::join(ways, ", or "));
}

void check_reachable(const ModelConfig& config, const ConvertSettings& settings,
                     const KvPlan& plan) {
  if (reachable(config, settings)) {
    return;
  }
  const std::int64_t context = plan_context(config, settings);
  const std::int64_t exact = context - tokens_in_blocks(plan, context);
  const std::string reason =
      exact == 0
          ? std::string("too few bits are left for a code of each token")
          : fmt::format("in a cache of {} tokens, {}, which alone take a kept_ratio of {:.3f}",
                        context, exact_tokens_text(plan, context),
                        static_cast<double>(exact) / static_cast<double>(context));
  fail("--kept-ratio {} cannot be reached: {}. Use {}", settings.kept_ratio, reason,
       nearest_settings(config, settings));
}

}  // namespace

std::string exact_tokens_text(const KvPlan& plan, std::int64_t context) {
  const std::int64_t exact = context - tokens_in_blocks(plan, context);
  const CompressionSettings& compression = plan.compression;
  if (compression.sink_tokens + compression.window_tokens == 0) {
    return exact == 0 ? "none stays exact"
                      : fmt::format("{} stay exact (the last, incomplete block of {})", exact,
                                    kQuantisedTokens);
  }
  return fmt::format("{} stay exact (the first {}, the last {} and an incomplete block of {})",
                     exact, compression.sink_tokens, compression.window_tokens, kQuantisedTokens);
}

std::int64_t coded_bit_budget(const ModelConfig& config, const ConvertSettings& settings,
                              const KvPlan& plan) {
  const KvDtype dtype = cache_dtype(config);
  const std::int64_t context = plan_context(config, settings);
  const std::int64_t coded = tokens_in_blocks(plan, context);
  if (coded == 0) {
    return -1;
  }
  KvPlan empty = plan;
  for (CodedBlock& block : empty.coded) {
    block.coefficients = {};
  }
  const double bytes =
      settings.kept_ratio * static_cast<double>(original_bytes(plan, context, dtype)) -
      static_cast<double>(plan_bytes(empty, context, {}, dtype));
  const double bits = std::floor(8 * bytes / static_cast<double>(coded) * (1 + 1e-12));
  return static_cast<std::int64_t>(
      std::min(bits, static_cast<double>(kMaxCodeBits * total_channels(config))));
}

std::int64_t least_coded_bits(const ModelConfig& config, const ConvertSettings& settings,
                              const KvPlan& plan) {
  const auto num_blocks = static_cast<std::int64_t>(plan.coded.size());
  return std::max(num_blocks * widths_of(settings.own<CodedSettings>().widths)[1],
                  total_channels(config) / kChannelsPerBit);
}

double least_coded_kept_ratio(const PlanRequest& request) {
  const ModelConfig& config = request.config;
  const ConvertSettings& settings = request.settings;
  const std::int64_t context = plan_context(config, settings);
  KvPlan plan = raw_plan(config, settings);
  const std::int64_t coded = tokens_in_blocks(plan, context);
  if (coded == 0) {
    return 1;
  }
  const auto least = static_cast<double>(least_coded_bits(config, settings, plan));
  for (CodedBlock& block : plan.coded) {
    block.coefficients = {};
  }
  const KvDtype dtype = cache_dtype(config);
  return (static_cast<double>(plan_bytes(plan, context, {}, dtype)) +
          least / 8 * static_cast<double>(coded)) /
         static_cast<double>(original_bytes(plan, context, dtype));
}

double coded_kept_ratio(const ModelConfig& config, const KvPlan& plan, std::int64_t num_tokens) {
  const KvDtype dtype = cache_dtype(config);
  return static_cast<double>(plan_bytes(plan, num_tokens, {}, dtype)) /
         static_cast<double>(original_bytes(plan, num_tokens, dtype));
}

KvPlan make_coded_plan(const PlanRequest& request) {
  const ModelConfig& config = request.config;
  const ConvertSettings& settings = request.settings;
  KvPlan plan = raw_plan(config, settings);
  if (!request.force) {
    check_reachable(config, settings, plan);
  }
  spread_budget(config, settings, plan);
  return plan;
}

}  // namespace kvc
