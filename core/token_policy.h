// Token policies decide which tokens of a sequence a cache keeps, independent of how layers store them.
// This file has their settings, and the rows and bytes that they keep; runtime/policies/ applies them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/kv_plan_bytes.h"

namespace kvc {

enum class TokenPolicyKind { kFull, kStreamingLlm, kH2o, kZeroMerge, kSnapKv, kPyramidKv, kThink };

std::string to_string(TokenPolicyKind);

// A number of tokens, or a share of the prompts' tokens.
struct TokenBudget {
  double share = 0.2;  // used if tokens is 0
  std::int64_t tokens = 0;

  std::int64_t of(std::int64_t prompt_tokens) const;
};

// Settings of all policies; which of them a policy reads, and what it does, is in its row of the table
// (token_policy.cpp).
struct TokenPolicy {
  TokenPolicyKind kind = TokenPolicyKind::kFull;
  TokenBudget budget{};          // per layer and KV head
  std::int64_t sink_tokens = 0;  // first tokens that always stay
  std::int64_t window_tokens =
      0;                    // streamingllm: last tokens; snapkv, pyramidkv: those that vote; think:
                            // that keep all channels, and whose queries score them
  double ring_share = 0.4;  // of the budget: last tokens
  std::int64_t residual_slots = 0;  // other tokens merge into these; 0: they are dropped
  double lambda = 1;                // decay of scores per token
  double alpha = 0.6;               // weight of log(count) in the scores of merged tokens
  bool contiguous_merge = false;    // a prompt's tokens merge in runs, not by similar keys
  bool released_step = false;       // as the released code: the newcomer is never the one merged
  bool compress_chunks = false;     // reduce after every piece of a prompt, not at its end
  bool cache_positions = false;     // streamingllm: RoPE by place in the cache
  std::int64_t pool_width = 7;      // of the max-pooling of votes
  double beta = 20;                 // pyramidkv: budget over the least layer's budget
  double pruned_share = 0.4;        // think: of a key's channels, dropped (kept_channels)

  bool is_full() const { return kind == TokenPolicyKind::kFull; }
  bool is_running() const;       // every generated token makes another one leave
  bool has_scores() const;       // by which tokens are ranked
  bool keeps_last() const;       // sinks and the last tokens alone, the same of all heads
  bool narrows() const;          // budgets of deeper layers
  bool prunes_channels() const;  // all tokens are kept, with fewer channels of their keys
  // Numbers of 4 bytes that are kept of every token beside its key and value: its position, and a score where there is one.
  std::int64_t num_columns() const { return is_full() ? 0 : has_scores() ? 2 : 1; }
  // The smallest budget that the settings allow.
  std::int64_t least_budget() const;
};

// "NAME[:key=value,...]", e.g. "zeromerge:budget=0.1,residual=2". A budget is a number of tokens, or a share
// ("0.1", "10%") of the prompt. UsageError, naming the known words, for anything else and for settings that
// leave no room.
TokenPolicy parse_token_policy(const std::string& text);
// The same with every setting; parse_token_policy reads it back.
std::string to_string(const TokenPolicy& policy);

// Rows of a running policy with a full budget, in this order; merged tokens are stored separately.
struct RunningLayout {
  std::int64_t sinks = 0, context = 0, ring = 0;

  std::int64_t rows() const { return sinks + context + ring; }
};
// Last tokens that a budget keeps, by ring_share.
std::int64_t ring_tokens(const TokenPolicy& policy, std::int64_t budget);
// `budget`: tokens, at least least_budget().
RunningLayout running_layout(const TokenPolicy& policy, std::int64_t budget);
// A layer's budget for prompts of that many tokens; layers differ only with pyramidkv.
std::int64_t layer_budget(const TokenPolicy& policy, std::int64_t prompt_tokens, int layer,
                          int num_layers);

// Contents of one layer for a sequence: rows, each a token per KV head, and residual slots.
struct KeptTokens {
  std::int64_t rows = 0;           // that hold tokens
  std::int64_t reserved_rows = 0;  // at least that many have memory
  bool has_left = false;           // some tokens: rows are no longer all of them
  std::int64_t codes = 0;          // rows that are codes
  std::int64_t residual_slots = 0;
  bool shares_heads = false;  // all heads keep the same tokens, whatever the policy
  bool follows = false;       // another layer holds the same tokens, their positions and scores
};
// Bytes of one layer:
//   plain_layer_bytes(codes, rows - codes) + rows * heads * 4 (int32 positions) + rows * heads * 4 (float32 scores,
//   of policies that have such) + residual_slots * num_kv_heads * (2 * head_dim * 4 + 4)
// Once tokens have left under a running policy, codes of keys and values are each of quantised_value_bytes. Rows are rounded
// up to pages as everywhere; residual slots (float32, with their counts) are not. `heads` is num_kv_heads, 1 where all heads
// keep the same tokens (streamingllm, shares_heads), or 0 where the layer follows.
std::int64_t kept_layer_bytes(const KvPlan& plan, const TokenPolicy& policy,
                              const KeptTokens& tokens, KvDtype dtype,
                              std::int64_t page_tokens = 1);

// Contents of one latent group under a policy: tokens that all its layers and heads share.
struct KeptGroupTokens {
  GroupTokens tokens;
  std::int64_t row_codes = 0;  // unmerged plain tokens stored as codes with scales per row
  std::int64_t residual_slots = 0;
};
// For layers that share a budget: layer_budget, of pyramidkv its mean over them, rounded down.
std::int64_t shared_budget(const KvPlan& plan, const TokenPolicy& policy,
                           std::int64_t prompt_tokens, const std::vector<int>& layers);
// group_bytes; under a policy that is not full with an int32 position for every token, and
//   + tokens * 4 (float32 scores, of policies that have such)
//   + residual_slots * (rank + 2) * 4 (float32 mean latent, mean position and count)
// row_codes unmerged tokens are codes (quantised_value_bytes each for keys and values); the others are exact.
std::int64_t kept_group_bytes(const KvPlan& plan, const TokenPolicy& policy, int group,
                              const KeptGroupTokens& tokens, KvDtype dtype,
                              std::int64_t page_tokens = 1);

// Contents of coded layers that are stored together, under a policy: tokens that all layers and heads share.
struct KeptCodedTokens {
  std::int64_t rows = 0;
  std::int64_t codes = 0;  // rows that are codes; between passes tokens_in_blocks(rows)
};
// Bytes of the layers stored with `first_layer`, the first of them: coded_block_bytes of their blocks with that many
// coded tokens, and
// under a policy that is not full
//   + rows * 4 (int32 positions) + rows * 4 (float32 scores, of policies that have such)
std::int64_t kept_coded_bytes(const KvPlan& plan, const TokenPolicy& policy, int first_layer,
                              const KeptCodedTokens& tokens, KvDtype dtype,
                              std::int64_t page_tokens = 1);

// A plain layer, the fused layers that read it, and all layers that these read.
struct SharingLayers {
  std::vector<int> layers;   // ascending
  std::vector<int> storage;  // the plain ones among them
  // All KV heads keep the same tokens too: a fused layer's head reads heads of other numbers.
  bool shares_heads = false;
};

// The sets of all plain layers, ordered by first layer. Each layer is in one set; sets may interleave.
std::vector<SharingLayers> sharing_layers(const KvPlan& plan);

// Keys that lose channels (ThinK, arXiv 2407.21018).
// Channels of a key that stay: head_dim less the policy's share (rounded to nearest), at least one.
std::int64_t kept_channels(const TokenPolicy& policy, std::int64_t head_dim);

// Bytes of one layer of `rows` tokens; the first `pruned_rows` have lost channels. With c =
// kept_channels and b bytes per element, pruned rows and others rounded up to pages separately:
//   pruned_rows * num_kv_heads * (c + head_dim) * b + (rows - pruned_rows) * 2 * kv_dim * b
//   + num_kv_heads * ceil(head_dim / 8) once there are pruned rows: the mask of the channels
std::int64_t pruned_layer_bytes(const KvPlan& plan, const TokenPolicy& policy, std::int64_t rows,
                                std::int64_t pruned_rows, KvDtype dtype,
                                std::int64_t page_tokens = 1);

// Tokens that have lost channels after a prompt of `rows` tokens: all but the window.
std::int64_t pruned_rows_of(const TokenPolicy& policy, const KvPlan& plan, std::int64_t rows);

}  // namespace kvc
