// What token policies do with the rows of a layer: at the end of a prompt, and after each generated token. A
// file for each kind of policy, a row for each policy in token_policies.cpp.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/token_policy.h"
#include "model/attention_rule.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// A prompt of which one layer has read all, or with compress_chunks a piece.
struct PromptEnd {
  const TokenPolicy& policy;
  AttentionRule rule;
  std::int64_t num_new = 0;  // tokens that were appended: the last rows
  at::Tensor query;  // of the last scoring_queries() of them, [m, num_heads, head_dim] post-RoPE
};

// How many of a prompt's last queries the policy scores tokens by. Of decaying scores those that can add
// more than kScoreError in all to a score per query head.
inline constexpr double kScoreError = 1e-6;
std::int64_t scoring_queries(const TokenPolicy& policy, std::int64_t num_new);

// `layer.budget` is set.
void finish_prompt(const PromptEnd& end, KeptLayer& layer);
// After a token was appended and attended to.
void finish_token(const TokenPolicy& policy, KeptLayer& layer);

// The policies' own.
void finish_running_prompt(const PromptEnd& end, KeptLayer& layer);  // running_policy.cpp
void finish_running_token(const TokenPolicy& policy, KeptLayer& layer);
void select_voted(const PromptEnd& end, KeptLayer& layer);  // voted_policy.cpp

// sum_i lambda^(m-1-i) a_i of the last m tokens' queries, a_i the probabilities that query i gives, summed over
// the query heads of a KV head. Keys, [n, num_kv_heads, head_dim] float32, in the order of rows; slots get
// their part of the probabilities. [n, num_kv_heads] float32
at::Tensor attention_scores(const PromptEnd& end, const at::Tensor& key,
                            const ResidualSlots& slots);

}  // namespace kvc
