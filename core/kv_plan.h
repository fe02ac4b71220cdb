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
// What a prompt's tokens attend to: exact keys and values (exact); keys and values rebuilt from latents, as the papers' code
// does (truncated); or what a generated token would read, so codes of earlier tiles (coded).
enum class PrefillMode { kExact, kTruncated, kCoded };
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
  std::vector<CodedBlock> coded;  // ascending by layer, part and head; they cover the coded layers
  std::vector<FusedLayer> fused;  // ascending; exactly the fused layers
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

// True if the plan's groups, which are all of one kind, have this basis.
bool has_basis(const KvPlan& plan, LatentBasis basis);
// True if unmerged tokens of `group` store one latent per layer.
bool keeps_latents(const KvPlan& plan, int group);
// True if running the plan computes the latents A x. Least squares encodes exact keys and values
// instead; then only folded exports use A and the unmerged B.
bool needs_latents(const KvPlan& plan, int group);

// Channels of a coded block's y.
std::int64_t coded_channels(const KvPlan& plan, const CodedBlock& block);

KvPlan plain_plan(int num_layers, std::int64_t num_kv_heads, std::int64_t head_dim);

// One layer's part of a group's y: its keys and values. For a model's own latents (KvPlan::own_widths): the latents
// before their norm, in place of keys. With c = own_widths.key, and d = own_widths.value numbers of rotary keys that
// stay exact, such a group takes
//   merged * (rank + G*d)*b + (unmerged + pending) * G*(c + d)*b + bases * G * c * rank * b
KvWidths grouped_widths(const KvPlan& plan);

// Parts of KvPlan::check: ranks and merge weights of one group, and what basis the groups have.
void check_group(const KvPlan& plan, const LatentGroup& group);
void check_basis(const KvPlan& plan);

}  // namespace kvc
