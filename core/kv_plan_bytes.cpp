#include "core/kv_plan_bytes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/arithmetic.h"

namespace kvc {
namespace {

constexpr const char* kSubject = "KV bytes";
constexpr std::int64_t kPositionBytes = 4;  // int32
constexpr std::int64_t kFloatBytes = 4;
constexpr std::int64_t kScaleBytes = 4;  // float16 scale and minimum

template <typename... Factors>
std::int64_t product(std::int64_t first, Factors... rest) {
  ((first = checked_mul(first, std::int64_t{rest}, kSubject)), ...);
  return first;
}

std::int64_t sum(std::int64_t a, std::int64_t b) { return checked_add(a, b, kSubject); }

std::int64_t whole_pages(std::int64_t tokens, std::int64_t page_tokens) {
  KVC_CHECK(tokens >= 0 && page_tokens >= 1, "{}: {} tokens in pages of {}", kSubject, tokens,
            page_tokens);
  return product(sum(tokens, page_tokens - 1) / page_tokens, page_tokens);
}

std::int64_t scale_channels(std::int64_t width) { return std::gcd(width, std::int64_t{32}); }

std::int64_t code_bytes(std::int64_t tokens, std::int64_t width, KvDtype dtype) {
  return product(tokens, width, bits_per_element(dtype)) / 8;
}

std::int64_t tokens_outside_window(const KvPlan& plan, std::int64_t num_tokens) {
  const std::int64_t exact = sum(plan.compression.sink_tokens, plan.compression.window_tokens);
  return std::max<std::int64_t>(0, num_tokens - exact);
}

// A latent's bytes are the same for every token.
std::int64_t latent_bytes(std::int64_t rank, KvDtype dtype) {
  return quantises_latents(rank, dtype) ? quantised_value_bytes(1, rank, rank, dtype)
                                        : product(rank, bytes_per_element(dtype));
}

// Keys and values of one layer: `quantised` tokens as codes, `exact` ones not.
std::int64_t key_value_bytes(const KvPlan& plan, std::int64_t quantised, std::int64_t exact,
                             KvDtype dtype, std::int64_t page_tokens) {
  const std::int64_t codes = whole_pages(quantised, page_tokens);
  std::int64_t bytes =
      product(2, plan.kv_dim(), bytes_per_element(dtype), whole_pages(exact, page_tokens));
  if (codes > 0) {
    bytes = sum(bytes, quantised_key_bytes(codes, plan.kv_dim(), dtype));
    bytes = sum(bytes, quantised_value_bytes(codes, plan.kv_dim(), plan.head_dim, dtype));
  }
  return bytes;
}

// Beside its exact keys and values, what a pending token keeps so that it can be decided and
// encoded.
std::int64_t held_bytes(const KvPlan& plan, const LatentGroup& group, std::int64_t element) {
  if (group.basis != LatentBasis::kWeights) {
    return 0;
  }
  if (plan.compression.unmerged == UnmergedForm::kLatent) {
    return product(group.num_layers, group.rank, element);
  }
  if (plan.compression.rule == MergeRule::kLs) {
    return plan.key_norm ? product(group.num_layers, plan.num_kv_heads, kFloatBytes) : 0;
  }
  return sum(product(group.rank, element), kFloatBytes);
}

std::int64_t unmerged_bytes(const KvPlan& plan, const LatentGroup& group, std::int64_t tokens,
                            KvDtype dtype, std::int64_t page_tokens) {
  if (plan.compression.unmerged == UnmergedForm::kLatent) {
    return product(whole_pages(tokens, page_tokens), group.num_layers,
                   latent_bytes(group.rank, dtype));
  }
  const std::int64_t quantised =
      is_integer(dtype) ? tokens / kQuantisedTokens * kQuantisedTokens : 0;
  return product(group.num_layers,
                 key_value_bytes(plan, quantised, tokens - quantised, dtype, page_tokens));
}

// What selective reconstruction keeps beside the latents.
std::int64_t chunk_bytes(const KvPlan& plan, const LatentGroup& group, const GroupTokens& tokens,
                         std::int64_t element, std::int64_t page_tokens) {
  if (!plan.selective) {
    return 0;
  }
  const std::int64_t landmarks =
      whole_pages(plan.selective->num_chunks(tokens.merged), page_tokens);
  const std::int64_t exact =
      whole_pages(product(tokens.outliers, plan.selective->chunk_tokens), page_tokens);
  const std::int64_t rows = sum(landmarks, product(2, exact));
  return product(group.num_layers, sum(product(rows, plan.kv_dim(), element),
                                       product(whole_pages(tokens.outliers, page_tokens),
                                               plan.num_kv_heads, kPositionBytes)));
}

// For a group of a model's own latents, whose rotary keys stay exact.
std::int64_t own_group_bytes(const KvPlan& plan, const LatentGroup& group,
                             const GroupTokens& tokens, KvDtype dtype, std::int64_t page_tokens) {
  const KvWidths own = *plan.own_widths;
  const std::int64_t element = bytes_per_element(dtype);
  const std::int64_t rotary = product(group.num_layers, own.value, element);
  const std::int64_t merged = product(whole_pages(tokens.merged, page_tokens),
                                      sum(latent_bytes(group.rank, dtype), rotary));
  const std::int64_t exact = product(
      sum(whole_pages(tokens.unmerged, page_tokens), whole_pages(tokens.pending, page_tokens)),
      group.num_layers, own.total(), element);
  const std::int64_t bases = product(tokens.bases, group.num_layers,
                                     whole_pages(own.key, page_tokens), group.rank, element);
  return sum(sum(merged, exact), bases);
}

}  // namespace

std::int64_t quantised_key_bytes(std::int64_t tokens, std::int64_t width, KvDtype dtype) {
  KVC_CHECK(tokens % kQuantisedTokens == 0, "{}: {} tokens of {}, expected a multiple of {}",
            kSubject, tokens, to_string(dtype), kQuantisedTokens);
  return sum(code_bytes(tokens, width, dtype),
             product(tokens / kQuantisedTokens, width, kScaleBytes));
}

std::int64_t quantised_value_bytes(std::int64_t tokens, std::int64_t width, std::int64_t head_dim,
                                   KvDtype dtype) {
  return sum(code_bytes(tokens, width, dtype),
             product(tokens, width / scale_channels(head_dim), kScaleBytes));
}

bool quantises_latents(std::int64_t rank, KvDtype dtype) {
  return is_integer(dtype) &&
         quantised_value_bytes(1, rank, rank, dtype) < product(rank, bytes_per_element(dtype));
}

std::int64_t quantised_tokens(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype) {
  if (!is_integer(dtype)) {
    return 0;
  }
  return tokens_in_blocks(plan, num_tokens);
}

std::int64_t group_bytes(const KvPlan& plan, int index, const GroupTokens& tokens, KvDtype dtype,
                         std::int64_t page_tokens) {
  const LatentGroup& group = plan.groups.at(static_cast<std::size_t>(index));
  if (plan.own_widths) {
    return own_group_bytes(plan, group, tokens, dtype, page_tokens);
  }
  const std::int64_t element = bytes_per_element(dtype);
  const bool positions = plan.compression.granularity == Granularity::kToken &&
                         plan.compression.rule != MergeRule::kNone;
  const std::int64_t position = positions ? kPositionBytes : 0;
  const std::int64_t exact = product(2, group.num_layers, plan.kv_dim(), element);
  const std::int64_t merged = product(whole_pages(tokens.merged, page_tokens),
                                      sum(latent_bytes(group.rank, dtype), position));
  const std::int64_t unmerged =
      sum(unmerged_bytes(plan, group, tokens.unmerged, dtype, page_tokens),
          product(whole_pages(tokens.unmerged, page_tokens), position));
  const std::int64_t pending = product(whole_pages(tokens.pending, page_tokens),
                                       sum(exact, held_bytes(plan, group, element)));
  const std::int64_t bases =
      product(tokens.bases, group.num_layers, whole_pages(plan.kv_dim(), page_tokens),
              sum(group.key_width(), group.value_width()), element);
  return sum(sum(sum(merged, unmerged), sum(pending, bases)),
             chunk_bytes(plan, group, tokens, element, page_tokens));
}

std::int64_t break_even_tokens(const KvPlan& plan, KvDtype dtype) {
  const std::int64_t unit = plan.selective ? plan.selective->chunk_tokens : 1;
  std::int64_t per_unit = 0, basis = 0;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const int group = static_cast<int>(i);
    per_unit += group_bytes(plan, group, {.pending = unit}, dtype) -
                group_bytes(plan, group, {.merged = unit}, dtype);
    basis += group_bytes(plan, group, {.bases = 1}, dtype);
  }
  return per_unit > 0 ? basis * unit / per_unit + 1 : std::numeric_limits<std::int64_t>::max();
}

std::int64_t plain_layer_bytes(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype,
                               std::int64_t page_tokens) {
  const std::int64_t codes = quantised_tokens(plan, num_tokens, dtype);
  return plain_layer_bytes(plan, codes, num_tokens - codes, dtype, page_tokens);
}

std::int64_t plain_layer_bytes(const KvPlan& plan, std::int64_t codes, std::int64_t exact,
                               KvDtype dtype, std::int64_t page_tokens) {
  if (!plan.own_widths) {
    return key_value_bytes(plan, codes, exact, dtype, page_tokens);
  }
  const std::int64_t element = bytes_per_element(dtype), all = sum(codes, exact);
  const std::int64_t latents = quantises_latents(plan.own_widths->key, dtype) ? codes : 0;
  return sum(
      sum(product(whole_pages(latents, page_tokens), latent_bytes(plan.own_widths->key, dtype)),
          product(whole_pages(all - latents, page_tokens), plan.own_widths->key, element)),
      product(whole_pages(all, page_tokens), plan.own_widths->value, element));
}

std::int64_t retained_layer_bytes(const KvPlan& plan, std::int64_t rows, KvDtype dtype,
                                  std::int64_t page_tokens) {
  return sum(plain_layer_bytes(plan, rows, dtype, page_tokens),
             product(whole_pages(rows, page_tokens), kPositionBytes));
}

std::int64_t tokens_in_blocks(const KvPlan& plan, std::int64_t num_tokens) {
  return tokens_outside_window(plan, num_tokens) / kQuantisedTokens * kQuantisedTokens;
}

bool codes_prompts(const KvPlan& plan) { return plan.compression.prefill == PrefillMode::kCoded; }

bool reads_codes_by_layer(const KvPlan& plan, KvDtype dtype) {
  const int plain = plan.num_layers_from(KvSource::kPlain);
  return plain + plan.num_layers_from(KvSource::kCoded) == plan.num_layers() &&
         !(plain > 0 && is_integer(dtype)) &&
         plan.compression.window_tokens % kQuantisedTokens == 0 &&
         std::all_of(plan.coded.begin(), plan.coded.end(),
                     [](const CodedBlock& block) { return block.num_layers == 1; });
}

bool codes_first_token(const KvPlan& plan) {
  return codes_prompts(plan) && plan.compression.sink_tokens == 0;
}

std::int64_t block_code_bytes(const CodedBlock& block, std::int64_t tokens,
                              std::int64_t page_tokens) {
  const std::int64_t codes = whole_pages(tokens, std::max(page_tokens, kQuantisedTokens));
  return sum(product(codes / kQuantisedTokens, block.bits(), kQuantisedTokens / 8),
             block.gain ? codes : 0);
}

std::int64_t coded_block_bytes(const KvPlan& plan, const CodedBlock& block, std::int64_t num_tokens,
                               KvDtype dtype, std::int64_t page_tokens) {
  const std::int64_t coded = tokens_in_blocks(plan, num_tokens);
  return sum(block_code_bytes(block, coded, page_tokens),
             product(whole_pages(num_tokens - coded, page_tokens), coded_channels(plan, block),
                     bytes_per_element(dtype)));
}

std::int64_t PairedLayers::most_retained(std::int64_t tokens) const {
  return static_cast<std::int64_t>(std::ceil(retained * static_cast<double>(tokens)));
}

std::int64_t pair_bytes(const KvPlan& plan, const PairTokens& tokens, KvDtype dtype,
                        std::int64_t page_tokens) {
  const std::int64_t element = bytes_per_element(dtype);
  const std::int64_t merged = product(2, plan.kv_dim() + 2 * plan.num_kv_heads, element);
  const std::int64_t retained = sum(product(2, plan.kv_dim(), element), kPositionBytes);
  return sum(sum(product(whole_pages(tokens.merged, page_tokens), merged),
                 product(sum(whole_pages(tokens.retained_keys, page_tokens),
                             whole_pages(tokens.retained_values, page_tokens)),
                         retained)),
             product(whole_pages(tokens.exact, page_tokens), 4, plan.kv_dim(), element));
}

std::int64_t plan_bytes(const KvPlan& plan, std::int64_t num_tokens,
                        const std::vector<GroupTokens>& groups, KvDtype dtype,
                        std::int64_t page_tokens, const std::vector<PairTokens>& pairs) {
  KVC_CHECK(groups.size() == plan.groups.size(), "{}: token counts of {} groups, the plan has {}",
            kSubject, groups.size(), plan.groups.size());
  const std::size_t num_pairs = plan.paired ? plan.paired->first_layers.size() : 0;
  KVC_CHECK(pairs.size() == num_pairs, "{}: token counts of {} pairs of layers, the plan has {}",
            kSubject, pairs.size(), num_pairs);
  std::int64_t total = 0;
  for (const KvSource source : plan.layers) {
    if (source == KvSource::kPlain) {
      total = sum(total, plain_layer_bytes(plan, num_tokens, dtype, page_tokens));
    }
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    total = sum(total, group_bytes(plan, static_cast<int>(i), groups[i], dtype, page_tokens));
  }
  for (const CodedBlock& block : plan.coded) {
    total = sum(total, coded_block_bytes(plan, block, num_tokens, dtype, page_tokens));
  }
  for (const PairTokens& pair : pairs) {
    total = sum(total, pair_bytes(plan, pair, dtype, page_tokens));
  }
  return total;
}

std::int64_t original_bytes(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype) {
  return product(plan.num_layers(), plan.plain_widths().total(), num_tokens,
                 bytes_per_element(dtype));
}

}  // namespace kvc
