#include "core/kv_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/arithmetic.h"

namespace kvc {
namespace {

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;  // heads, head_dim
constexpr std::int64_t kMaxLayers = std::int64_t{1} << 16;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

void check_compression(const CompressionSettings& compression) {
  KVC_CHECK(std::isfinite(compression.target_kept_ratio) && compression.target_kept_ratio > 0,
            "KV plan: target_kept_ratio {}, expected more than 0", compression.target_kept_ratio);
  for (const std::int64_t tokens : {compression.sink_tokens, compression.window_tokens}) {
    KVC_CHECK(tokens >= 0 && tokens <= kMaxTokens,
              "KV plan: {} sink or window tokens, expected 0 to {}", tokens, kMaxTokens);
  }
  KVC_CHECK(compression.block_tokens >= 1 && compression.block_tokens <= kMaxTokens,
            "KV plan: blocks of {} tokens, expected 1 to {}", compression.block_tokens, kMaxTokens);
}

void check_own_widths(const KvPlan& plan) {
  if (!plan.own_widths) {
    return;
  }
  for (const std::int64_t width : {plan.own_widths->key, plan.own_widths->value}) {
    KVC_CHECK(width >= 1 && width <= kMaxWidth,
              "KV plan: {} values per token in the model's own cache, expected 1 to {}", width,
              kMaxWidth);
  }
  KVC_CHECK(plan.coded.empty() && plan.fused.empty() && !plan.paired,
            "KV plan: layers whose cache holds latents of their own are neither coded, fused nor "
            "paired");
}

// Layers first to first + count - 1 must be the plan's, from `least` on.
void check_layers(const KvPlan& plan, const char* what, int first, int count, int least) {
  KVC_CHECK(count >= 1 && count <= plan.num_layers(),
            "KV plan: the {} at layer {} has {} layers, expected 1 to {}", what, first, count,
            plan.num_layers());
  KVC_CHECK(first >= least && first <= plan.num_layers() - count,
            "KV plan: a {} begins at layer {}, expected {} to {} (ascending, no overlap)", what,
            first, least, plan.num_layers() - count);
}

// `covered` [num_layers]: layers that the plan's parts of this source hold.
void check_cover(const KvPlan& plan, KvSource source, const std::vector<bool>& covered,
                 const char* part) {
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    const auto i = static_cast<std::size_t>(layer);
    KVC_CHECK(covered[i] == (plan.layers[i] == source),
              "KV plan: layer {} is {}, but {} {} holds it", layer, to_string(plan.layers[i]),
              covered[i] ? "a" : "no", part);
  }
}

void check_groups(const KvPlan& plan) {
  std::vector<bool> covered(plan.layers.size(), false);
  int next = 0;
  for (const LatentGroup& group : plan.groups) {
    check_layers(plan, "group", group.first_layer, group.num_layers, next);
    next = group.first_layer + group.num_layers;
    std::fill(covered.begin() + group.first_layer, covered.begin() + next, true);
    check_group(plan, group);
  }
  check_cover(plan, KvSource::kLatent, covered, "group");
}

void check_coefficients(const KvPlan& plan, const CodedBlock& block) {
  const std::int64_t channels = coded_channels(plan, block);
  for (const std::int64_t count : block.coefficients) {
    KVC_CHECK(count >= 0 && count <= channels,
              "KV plan: {} coefficients of one width in the coded block at layer {}, expected 0 "
              "to {}",
              count, block.first_layer, channels);
  }
  KVC_CHECK(block.coefficients[0] == 0 && block.num_coefficients() <= channels,
            "KV plan: {} coefficients of {} channels in the coded block at layer {}",
            block.num_coefficients(), channels, block.first_layer);
}

void check_bases(const KvPlan& plan, const CodedBlock& block) {
  const std::int64_t pairs = plan.head_dim / 2;
  const bool apart = block.part == CodedParts::kKeys && block.head >= 0;
  KVC_CHECK(block.bases == 1 || (apart && block.bases > 1 && pairs % block.bases == 0),
            "KV plan: {} bases in the coded block at layer {}, expected 1, or for the keys of one "
            "KV head a divisor of its {} rotary pairs",
            block.bases, block.first_layer, pairs);
  KVC_CHECK(!block.rotated || (apart && block.bases == pairs),
            "KV plan: the coded block at layer {} is rotated, which requires the keys of one KV "
            "head in {} bases",
            block.first_layer, pairs);
}

// Blocks of one part of a layer from block `at` on: its heads one after the other, or one block of them all. Returns the
// index behind them.
std::size_t check_part(const KvPlan& plan, std::size_t at, CodedParts part, int first_layer) {
  for (int head = 0; head < plan.num_kv_heads; ++head, ++at) {
    KVC_CHECK(at < plan.coded.size(), "KV plan: the last coded layer lacks {} of KV head {}",
              to_string(part), head);
    const CodedBlock& block = plan.coded[at];
    const bool whole = head == 0 && block.head < 0;
    KVC_CHECK(block.first_layer == first_layer &&
                  (whole || (block.num_layers == 1 && block.head == head)),
              "KV plan: the coded block at layer {} is for KV head {}, expected {}",
              block.first_layer, block.head,
              head == 0 ? "0, or -1 for all" : fmt::format("{}", head));
    KVC_CHECK(block.part == part, "KV plan: the coded block at layer {} holds {}, expected {}",
              first_layer, to_string(block.part), to_string(part));
    check_bases(plan, block);
    check_coefficients(plan, block);
    if (whole) {
      return at + 1;
    }
  }
  return at;
}

void check_coded(const KvPlan& plan) {
  std::vector<bool> covered(plan.layers.size(), false);
  int next = 0;
  for (std::size_t at = 0; at < plan.coded.size();) {
    const CodedBlock& first = plan.coded[at];
    check_layers(plan, "coded block", first.first_layer, first.num_layers, next);
    next = first.first_layer + first.num_layers;
    std::fill(covered.begin() + first.first_layer, covered.begin() + next, true);
    if (first.part == CodedParts::kBoth) {
      at = check_part(plan, at, CodedParts::kBoth, first.first_layer);
      continue;
    }
    KVC_CHECK(first.num_layers == 1,
              "KV plan: the coded block at layer {} holds {} of {} layers, expected of 1",
              first.first_layer, to_string(first.part), first.num_layers);
    at = check_part(plan, at, CodedParts::kKeys, first.first_layer);
    at = check_part(plan, at, CodedParts::kValues, first.first_layer);
  }
  check_cover(plan, KvSource::kCoded, covered, "coded block");
  KVC_CHECK(!plan.coded.empty() || plan.compression.prefill != PrefillMode::kCoded,
            "KV plan: prefill coded without coded layers, expected exact or truncated");
}

// Heads of a fused layer's sources, of which there are `num_sources`.
void check_heads(const KvPlan& plan, const FusedLayer& fused, const std::vector<int>& heads,
                 std::size_t num_sources) {
  KVC_CHECK(
      heads.empty() || (fused.form != FusionForm::kFull &&
                        heads.size() == num_sources * static_cast<std::size_t>(plan.num_kv_heads)),
      "KV plan: fused layer {} of form {} names {} heads of {} sources, expected none or, unless "
      "the form is full, {} of each",
      fused.layer, to_string(fused.form), heads.size(), num_sources, plan.num_kv_heads);
  for (const int head : heads) {
    KVC_CHECK(head >= 0 && head < plan.num_kv_heads,
              "KV plan: fused layer {} reads KV head {}, expected 0 to {}", fused.layer, head,
              plan.num_kv_heads - 1);
  }
}

void check_fused(const KvPlan& plan) {
  std::vector<bool> covered(plan.layers.size(), false);
  int next = 0;
  for (const FusedLayer& fused : plan.fused) {
    check_layers(plan, "fused layer", fused.layer, 1, next);
    next = fused.layer + 1;
    covered[static_cast<std::size_t>(fused.layer)] = true;
    for (const auto* sources : {&fused.key_sources, &fused.value_sources}) {
      int least = 0;
      KVC_CHECK(!sources->empty(), "KV plan: fused layer {} has no sources", fused.layer);
      for (const int source : *sources) {
        KVC_CHECK(
            source >= least && source < fused.layer &&
                plan.layers[static_cast<std::size_t>(source)] == KvSource::kPlain,
            "KV plan: fused layer {} reads layer {}, expected ascending plain layers below it",
            fused.layer, source);
        least = source + 1;
      }
    }
    check_heads(plan, fused, fused.key_heads, fused.key_sources.size());
    check_heads(plan, fused, fused.value_heads, fused.value_sources.size());
  }
  check_cover(plan, KvSource::kFused, covered, "fused layer");
}

void check_paired(const KvPlan& plan) {
  std::vector<bool> covered(plan.layers.size(), false);
  if (plan.paired) {
    int next = 0;
    for (const int first : plan.paired->first_layers) {
      check_layers(plan, "pair", first, 2, next);
      next = first + 2;
      std::fill(covered.begin() + first, covered.begin() + next, true);
    }
    const auto is_share = [](double x) { return std::isfinite(x) && x >= 0 && x <= 1; };
    KVC_CHECK(next > 0, "KV plan: \"paired\" names no layers");
    KVC_CHECK(is_share(plan.paired->position) && is_share(plan.paired->retained),
              "KV plan: paired layers at position {} with {} of the tokens retained, expected 0 to "
              "1",
              plan.paired->position, plan.paired->retained);
  }
  check_cover(plan, KvSource::kPaired, covered, "pair");
}

}  // namespace

std::int64_t coded_channels(const KvPlan& plan, const CodedBlock& block) {
  return block.num_parts() * (block.head < 0 ? plan.kv_dim() : plan.head_dim);
}

std::int64_t CodedBlock::num_coefficients() const {
  return std::accumulate(coefficients.begin(), coefficients.end(), std::int64_t{0});
}

std::int64_t CodedBlock::bits() const {
  std::int64_t bits = 0;
  for (int width = 1; width <= kMaxCodeBits; ++width) {
    bits += width * coefficients[static_cast<std::size_t>(width)];
  }
  return bits;
}

int KvPlan::num_layers_from(KvSource source) const {
  return static_cast<int>(std::count(layers.begin(), layers.end(), source));
}

int KvPlan::group_of(int layer) const {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (layer >= groups[i].first_layer && layer < groups[i].first_layer + groups[i].num_layers) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

void KvPlan::check() const {
  KVC_CHECK(
      num_kv_heads >= 1 && num_kv_heads <= kMaxWidth && head_dim >= 1 && head_dim <= kMaxWidth,
      "KV plan: {} KV heads of {} channels, expected 1 to {}", num_kv_heads, head_dim, kMaxWidth);
  KVC_CHECK(!layers.empty() && static_cast<std::int64_t>(layers.size()) <= kMaxLayers,
            "KV plan: {} layers, expected 1 to {}", layers.size(), kMaxLayers);
  check_groups(*this);
  check_basis(*this);
  check_coded(*this);
  check_fused(*this);
  check_paired(*this);
  check_compression(compression);
  check_own_widths(*this);
  KVC_CHECK(groups.empty() || compression.rule != MergeRule::kNone ||
                compression.unmerged == UnmergedForm::kLatent,
            "KV plan: rule none keeps every compressed token as latents; unmerged must be latent");
}

bool has_basis(const KvPlan& plan, LatentBasis basis) {
  return !plan.groups.empty() && plan.groups.front().basis == basis;
}

bool keeps_latents(const KvPlan& plan, int group) {
  return plan.groups[static_cast<std::size_t>(group)].replaces_projections() ||
         plan.compression.rule == MergeRule::kNone ||
         plan.compression.unmerged == UnmergedForm::kLatent;
}

bool needs_latents(const KvPlan& plan, int group) {
  return keeps_latents(plan, group) || plan.compression.rule != MergeRule::kLs ||
         plan.compression.prefill == PrefillMode::kTruncated;
}

KvPlan plain_plan(int num_layers, std::int64_t num_kv_heads, std::int64_t head_dim) {
  KvPlan plan;
  plan.num_kv_heads = num_kv_heads;
  plan.head_dim = head_dim;
  plan.layers.assign(static_cast<std::size_t>(num_layers), KvSource::kPlain);
  plan.check();
  return plan;
}

}  // namespace kvc
