// The KV plan: for each layer, where its keys and values come from. The one data structure that conversion, export,
// runtime and validation share. What it costs is in kv_plan_bytes.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/kv_sources.h"
#include "core/selective_reconstruction.h"

namespace kvc {

// How the latents of a group become one per token.
//   none         never: every compressed token keeps one latent per layer
//   mean, fisher, sensitivity   h = sum_l w_l A x_l   (CommonKV eq. 8; weights stored in the group)
//   ls           h = P y, least squares on the exact keys and values y of all layers of the group
enum class MergeRule { kNone, kMean, kFisher, kSensitivity, kLs };
enum class Granularity { kToken, kGroup };
// How prefill attends: exactly, or through the truncated factorisation, as the papers' code.
enum class PrefillMode { kExact, kTruncated };
// How an unmerged token of a latent group is stored.
enum class UnmergedForm { kPlain, kLatent };
// Dtype of a cache. Integers are codes with a float16 scale and minimum per group.
enum class KvDtype { kFloat32, kBFloat16, kFloat16, kInt8, kInt4, kInt2 };

std::string to_string(MergeRule);
std::string to_string(Granularity);
std::string to_string(PrefillMode);
std::string to_string(UnmergedForm);
std::string to_string(KvDtype);
MergeRule parse_merge_rule(const std::string&);  // Error lists the known ones; likewise below
Granularity parse_granularity(const std::string&);
PrefillMode parse_prefill_mode(const std::string&);
UnmergedForm parse_unmerged_form(const std::string&);
KvDtype parse_kv_dtype(const std::string&);
bool is_integer(KvDtype);
int bits_per_element(KvDtype);   // of a number, or of its code
int bytes_per_element(KvDtype);  // of numbers stored exactly (16-bit under integer types)

// When and how tokens of latent groups are compressed.
struct CompressionSettings {
  MergeRule rule = MergeRule::kLs;
  Granularity granularity = Granularity::kToken;
  PrefillMode prefill = PrefillMode::kExact;
  UnmergedForm unmerged = UnmergedForm::kPlain;
  double target_kept_ratio = 0.5;    // the best tokens merge until the cache is this small
  std::int64_t sink_tokens = 4;      // first tokens, never merged
  std::int64_t window_tokens = 128;  // last tokens, not merged yet
  std::int64_t block_tokens = 64;    // generated tokens are compressed this many at a time

  std::int64_t exact_tokens() const { return sink_tokens + window_tokens; }
};

// Tokens that are read after a request's basis was found (xKV): they stay exact, get latents of the first
// basis, or a basis of their own.
enum class LaterTokens { kExact, kProject, kNewSegment };
// How the basis is found: all eigenpairs of the Gram matrix, or the leading ones by block iteration.
enum class BasisSolver { kEigh, kSubspace };

std::string to_string(LaterTokens);
std::string to_string(BasisSolver);
LaterTokens parse_later_tokens(const std::string&);
BasisSolver parse_basis_solver(const std::string&);

// Settings of groups whose basis is the request's. A basis is only made where it saves bytes.
struct RequestSettings {
  LaterTokens later = LaterTokens::kExact;
  // Generated tokens are treated like a later turn's, compression.block_tokens at a time; else they stay exact.
  bool compress_generated = false;
  BasisSolver solver = BasisSolver::kEigh;
};

// Elements that one token of one layer stores for its keys and for its values.
struct KvWidths {
  std::int64_t key = 0, value = 0;

  std::int64_t total() const { return key + value; }
};

struct KvPlan {
  std::string method = "plain";  // "plain", or a method's name (convert/methods/)
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  bool key_norm = false;            // the model norms keys per head before RoPE (qwen3)
  std::vector<KvSource> layers;     // [num_layers]
  std::vector<LatentGroup> groups;  // ascending; their layers are exactly the latent ones
  std::vector<CodedBlock> coded;    // ascending by layer, then head; they cover the coded layers
  std::vector<FusedLayer> fused;    // ascending; exactly the fused layers
  std::optional<PairedLayers> paired{};  // iff layers are paired
  CompressionSettings compression;       // "policy" in files
  // Widths of the model's own cache if it does not store a key and a value per KV head: with multi-head latent
  // attention the latent and the shared rotary key. Groups share the latents (before their norm).
  std::optional<KvWidths> own_widths{};
  std::optional<RequestSettings> request{};  // iff groups have a basis of the request
  // Set by a run, for groups of principal directions; never part of a checkpoint.
  std::optional<SelectiveReconstruction> selective{};

  std::int64_t kv_dim() const { return num_kv_heads * head_dim; }
  KvWidths plain_widths() const { return own_widths.value_or(KvWidths{kv_dim(), kv_dim()}); }
  int num_layers() const { return static_cast<int>(layers.size()); }
  int num_layers_from(KvSource source) const;
  int group_of(int layer) const;  // latent group, or -1
  // Throws Error naming the first inconsistency (coverage, ranks, weights).
  void check() const;
};

// Do the plan's groups, which are all of one kind, have this basis?
bool has_basis(const KvPlan& plan, LatentBasis basis);
// Do unmerged tokens of `group` store one latent per layer?
bool keeps_latents(const KvPlan& plan, int group);
// Must the latents A x be computed when the plan runs? Not if least squares encodes exact keys and
// values; then only folded exports use A and the unmerged B.
bool needs_latents(const KvPlan& plan, int group);

KvPlan plain_plan(int num_layers, std::int64_t num_kv_heads, std::int64_t head_dim);

// One layer's part of a group's y: its keys and its values; of a model's own latents (KvPlan::own_widths) those, as
// they are before their norm, in the place of keys, and nothing else. With c = own_widths.key such a group takes, its
// d = own_widths.value numbers of rotary keys always exact,
//   merged * (rank + G*d)*b + (unmerged + pending) * G*(c + d)*b + bases * G * c * rank * b
KvWidths grouped_widths(const KvPlan& plan);

// The same of two paired layers. Only prompts are merged.
struct PairTokens {
  std::int64_t merged = 0;
  std::int64_t retained_keys = 0, retained_values = 0;  // of them
  std::int64_t exact = 0;
};

// Under integer types, keys (each channel over kQuantisedTokens tokens) and values (each token over neighbouring
// channels) become codes, kQuantisedTokens tokens at a time. Exact, as 16-bit numbers, are until then: of a plain
// layer the sinks, the window and the incomplete block; of a latent group's unmerged tokens the incomplete
// block; all of its pending tokens. Latents (each on its own) become codes at once.
inline constexpr std::int64_t kQuantisedTokens = 32;
// Bytes of `tokens` tokens' codes, scales and minima. With c bits per code and g = gcd(head_dim, 32), the
// channels that share a scale:
//   keys    tokens * width * c/8 + tokens/32 * width * 4
//   values  tokens * width * (c/8 + 4/g), and latents likewise with g = gcd(rank, 32)
std::int64_t quantised_key_bytes(std::int64_t tokens, std::int64_t width, KvDtype dtype);
std::int64_t quantised_value_bytes(std::int64_t tokens, std::int64_t width, std::int64_t head_dim,
                                   KvDtype dtype);
// Is a latent smaller as codes than as 16-bit numbers? Otherwise it is stored as these.
bool quantises_latents(std::int64_t rank, KvDtype dtype);
// How many tokens of a plain layer are codes once `num_tokens` were read: 0 for other types.
std::int64_t quantised_tokens(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype);

// Bytes of one latent group (G layers, b bytes per element; under integer types b = 2, but a latent is
// rank*b as codes and whole blocks of unmerged plain tokens are G * (keys + values) as codes):
//   merged   * (rank*b + p)
//   unmerged * (2*G*kv_dim*b + p) as plain, or * (G*rank*b + p) as latents
//   pending  * (2*G*kv_dim*b + held)
// p = 4, the int32 position, with token granularity; 0 with group granularity, and 0 for rule `none`
// (positions are contiguous). `held` is what must be kept to decide and encode later, exact:
//   latent-form unmerged tokens: G*rank*b (each layer's latent);
//   else mean, fisher, sensitivity: rank*b + 4 (the weighted latent and the float32 score);
//   else ls: 0, or G*num_kv_heads*4 with key_norm (the float32 root mean squares that undo the norm).
// The count of every segment is rounded up to `page_tokens` first, of quantised and of exact tokens apart;
// under integer types page_tokens is 1 or a multiple of kQuantisedTokens.
// Of a calibrated or a request's basis p and `held` are 0. A request's adds
//   bases * G * kv_dim * (key_width + value_width) * b, kv_dim rounded up to page_tokens.
// Under plan.selective, with chunks of c tokens:
//   G * (merged / c * kv_dim * b + outliers * (c * 2*kv_dim*b + 4 * num_kv_heads))
// the landmarks, merged / c rounded up and then to pages, outliers' keys and values, and whose they are
// (int32, rounded up to page_tokens).
std::int64_t group_bytes(const KvPlan& plan, int group, const GroupTokens& tokens, KvDtype dtype,
                         std::int64_t page_tokens = 1);
// The fewest tokens that bases of a request save bytes for, in all groups and pages of one token; most of
// int64 where none do. Under plan.selective of the tokens that come after its outliers.
std::int64_t break_even_tokens(const KvPlan& plan, KvDtype dtype);
// Bytes of one layer's plain KV: plain_widths().total() * b per token. Under integer types, quantised_tokens of
// them as codes: keys and values, or of a model's own cache the latent alone.
std::int64_t plain_layer_bytes(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype,
                               std::int64_t page_tokens = 1);
// The same of so many tokens that are codes and so many that are not.
std::int64_t plain_layer_bytes(const KvPlan& plan, std::int64_t codes, std::int64_t exact,
                               KvDtype dtype, std::int64_t page_tokens);
// Of a plain layer that holds only some tokens of a text, `rows`, as numbers: those bytes and 4 per row, its int32
// position.
std::int64_t retained_layer_bytes(const KvPlan& plan, std::int64_t rows, KvDtype dtype,
                                  std::int64_t page_tokens = 1);
// How many tokens of a coded layer are codes once `num_tokens` were read: all but the sinks, the window
// and an incomplete block of kQuantisedTokens.
std::int64_t coded_tokens(const KvPlan& plan, std::int64_t num_tokens);
// Bytes of the codes of so many tokens of a block: tokens * (bits / 8 + gain).
std::int64_t block_code_bytes(const CodedBlock& block, std::int64_t tokens,
                              std::int64_t page_tokens = 1);
// Bytes of one coded block. With C coded tokens, the others exact with b bytes per element:
//   block_code_bytes(C) + (num_tokens - C) * n * b       n: channels of the block, keys and values
std::int64_t coded_block_bytes(const KvPlan& plan, const CodedBlock& block, std::int64_t num_tokens,
                               KvDtype dtype, std::int64_t page_tokens = 1);
// Bytes of two paired layers, b = 2 under integer types, of which they have no codes. Counts are rounded up to
// `page_tokens`.
//   merged * 2 * (kv_dim + 2 * num_kv_heads) * b + (retained_keys + retained_values) * (2 * kv_dim * b + 4)
//   + exact * 4 * kv_dim * b
std::int64_t pair_bytes(const KvPlan& plan, const PairTokens& tokens, KvDtype dtype,
                        std::int64_t page_tokens = 1);
// The whole sequence: plain layers and coded blocks at num_tokens plus every group and every pair, in the order
// of plan.paired.
std::int64_t plan_bytes(const KvPlan& plan, std::int64_t num_tokens,
                        const std::vector<GroupTokens>& groups, KvDtype dtype,
                        std::int64_t page_tokens = 1, const std::vector<PairTokens>& pairs = {});
// num_layers * plain_widths().total() * num_tokens * b (2 * kv_dim wide where each head has its keys and
// values): the denominator of kept_ratio. Integer types count as the 16-bit numbers they stand for.
std::int64_t original_bytes(const KvPlan& plan, std::int64_t num_tokens, KvDtype dtype);
// kept_ratio as reports state it: of nothing 1.
constexpr double share_of_original(std::int64_t bytes, std::int64_t original) {
  return original > 0 ? static_cast<double>(bytes) / static_cast<double>(original) : 1;
}

}  // namespace kvc
