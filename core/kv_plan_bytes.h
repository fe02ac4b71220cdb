// What the parts of a KV plan cost in bytes, for so many tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"

namespace kvc {

// Tokens of a sequence in one latent group, by form.
struct GroupTokens {
  std::int64_t merged = 0;  // one latent for the whole group
  std::int64_t unmerged =
      0;  // compressed decisions that went against merging; form: compression.unmerged
  std::int64_t pending = 0;   // exact keys and values: sinks, window, incomplete block
  std::int64_t bases = 0;     // of the request
  std::int64_t outliers = 0;  // chunks that also stay exact, under plan.selective
};

// The same for two paired layers. Only prompts are merged.
struct PairTokens {
  std::int64_t merged = 0;
  std::int64_t retained_keys = 0, retained_values = 0;  // of them
  std::int64_t exact = 0;
};

// Under integer types, keys (each channel over kQuantisedTokens tokens) and values (each token over neighbouring
// channels) become codes, kQuantisedTokens tokens at a time. These stay 16-bit numbers: the sinks, the window and
// the incomplete block of a plain layer; the incomplete block of a latent group's unmerged tokens; all its
// pending tokens. Latents (each on its own) become codes at once.
inline constexpr std::int64_t kQuantisedTokens = 32;
// Bytes of the codes, scales and minima of `tokens` tokens. With c bits per code and g = gcd(head_dim,
// 32) channels per scale:
//   keys    tokens * width * c/8 + tokens/32 * width * 4
//   values  tokens * width * (c/8 + 4/g), and latents likewise with g = gcd(rank, 32)
std::int64_t quantised_key_bytes(std::int64_t tokens, std::int64_t width, KvDtype dtype);
std::int64_t quantised_value_bytes(std::int64_t tokens, std::int64_t width, std::int64_t head_dim,
                                   KvDtype dtype);
// True if a latent is smaller as codes than as 16-bit numbers; otherwise it stays 16-bit.
bool quantises_latents(std::int64_t rank, KvDtype dtype);
// Tokens of a plain layer that are codes after `num_tokens`; 0 for types that are no integers.
std::int64_t quantised_tokens(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype);

// Bytes of one latent group (G layers, b bytes per element; under integer types b = 2, but a latent is
// rank*b as codes and whole blocks of unmerged plain tokens are G * (keys + values) as codes):
//   merged   * (rank*b + p)
//   unmerged * (2*G*kv_dim*b + p) as plain, or * (G*rank*b + p) as latents
//   pending  * (2*G*kv_dim*b + held)
// p = 4, the int32 position, with token granularity; 0 with group granularity, and 0 for rule `none`
// (positions are contiguous). `held` is stored exactly to decide and encode later:
//   latent-form unmerged tokens: G*rank*b (each layer's latent);
//   else mean, fisher, sensitivity: rank*b + 4 (the weighted latent and the float32 score);
//   else ls: 0, or G*num_kv_heads*4 with key_norm (the float32 root mean squares that undo the norm).
// Every segment's count is rounded up to `page_tokens` first, quantised and exact tokens separately; under
// integer types page_tokens is 1 or a multiple of kQuantisedTokens. For a calibrated or a request's basis,
// p and `held` are 0. A request's basis adds
//   bases * G * kv_dim * (key_width + value_width) * b, kv_dim rounded up to page_tokens.
// Under plan.selective, with chunks of c tokens:
//   G * (merged / c * kv_dim * b + outliers * (c * 2*kv_dim*b + 4 * num_kv_heads))
// the landmarks (merged / c rounded up, then to pages), and the outliers' keys, values and tokens
// (int32, rounded up to page_tokens).
std::int64_t group_bytes(const KvPlan& plan, int group, const GroupTokens& tokens, KvDtype dtype,
                         std::int64_t page_tokens = 1);
// The fewest tokens for which bases of a request save bytes, over all groups with pages of one token; the
// largest int64 if none do. Under plan.selective: of tokens after its outliers.
std::int64_t break_even_tokens(const KvPlan& plan, KvDtype dtype);
// Bytes of one layer's plain KV: plain_widths().total() * b per token. Under integer types quantised_tokens of
// them are codes: keys and values, or of a model's own cache only the latent.
std::int64_t plain_layer_bytes(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype,
                               std::int64_t page_tokens = 1);
// The same of so many tokens that are codes and so many that are not.
std::int64_t plain_layer_bytes(const KvPlan& plan, std::int64_t codes, std::int64_t exact,
                               KvDtype dtype, std::int64_t page_tokens);
// The same for a plain layer that stores only `rows` tokens of a text, not as codes: 4 more bytes per row for its
// int32 position.
std::int64_t retained_layer_bytes(const KvPlan& plan, std::int64_t rows, KvDtype dtype,
                                  std::int64_t page_tokens = 1);
// Tokens outside the sinks and the window, in whole blocks of kQuantisedTokens: those of a coded layer that are codes.
std::int64_t tokens_in_blocks(const KvPlan& plan, std::int64_t num_tokens);
// True if prompts read codes, as generated tokens do.
bool codes_prompts(const KvPlan& plan);
// True if a text that is read through codes can be read layer by layer. Requires blocks of one layer each (the codes of several
// follow the last of them), a window of whole tiles, no source but codes and plain rows, and plain layers that do not become
// integers in a cache of `dtype`.
bool reads_codes_by_layer(const KvPlan& plan, KvDtype dtype);
// True if a text's first token is coded about a mean of its own. Implies codes_prompts.
bool codes_first_token(const KvPlan& plan);
// Bytes of the codes of so many tokens of a block: tokens * (bits / 8 + gain). Tokens are rounded up to tiles of
// kQuantisedTokens, as to pages.
std::int64_t block_code_bytes(const CodedBlock& block, std::int64_t tokens,
                              std::int64_t page_tokens = 1);
// Bytes of one coded block. With C coded tokens; the others are exact, b bytes per element:
//   block_code_bytes(C) + (num_tokens - C) * n * b       n: channels of the block, keys and values
std::int64_t coded_block_bytes(const KvPlan& plan, const CodedBlock& block, std::int64_t num_tokens,
                               KvDtype dtype, std::int64_t page_tokens = 1);
// Bytes of two paired layers. They have no codes: b = 2 under integer types. Counts are rounded up to
// `page_tokens`.
//   merged * 2 * (kv_dim + 2 * num_kv_heads) * b + (retained_keys + retained_values) * (2 * kv_dim * b + 4)
//   + exact * 4 * kv_dim * b
std::int64_t pair_bytes(const KvPlan& plan, const PairTokens& tokens, KvDtype dtype,
                        std::int64_t page_tokens = 1);
// Bytes of the whole sequence: plain layers and coded blocks at num_tokens, and every group and pair, in the
// order of plan.paired.
std::int64_t plan_bytes(const KvPlan& plan, std::int64_t num_tokens,
                        const std::vector<GroupTokens>& groups, KvDtype dtype,
                        std::int64_t page_tokens = 1, const std::vector<PairTokens>& pairs = {});
// num_layers * plain_widths().total() * num_tokens * b (2 * kv_dim wide where each head has its keys and
// values): the denominator of kept_ratio. Integer types count as 16-bit.
std::int64_t original_bytes(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype);
// kept_ratio as reports state it; 1 if the original is empty.
constexpr double share_of_original(std::int64_t bytes, std::int64_t original) {
  return original > 0 ? static_cast<double>(bytes) / static_cast<double>(original) : 1;
}

}  // namespace kvc
