// What token policies do with the rows of layers: at the end of a prompt, and after each generated token. What a policy is
// stands in core/token_policy.cpp.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/token_policy.h"
#include "model/config.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// A prompt that one layer has read, or with compress_chunks a piece of it.
struct PromptEnd {
  const TokenPolicy& policy;
  AttentionRule rule;
  std::int64_t num_new = 0;  // tokens that were appended: the last rows
  at::Tensor query;  // of the last scoring_queries() of them, [m, num_heads, head_dim] post-RoPE
};

// Plain layers that keep the same tokens.
struct KeptMember {
  KeptRows* rows;
  KeptRows::TurnKeys turn{};
};
struct KeptMembers {
  KeptGroup& choice;                // whose budget is set
  std::vector<KeptMember> members;  // the first has positions and scores

  KeptRows& first() const { return *members.front().rows; }
};

// Number of a prompt's last queries by which the policy scores tokens. With decaying scores: those that
// can add more than kScoreError in all to a score per query head.
inline constexpr double kScoreError = 1e-6;
std::int64_t scoring_queries(const TokenPolicy& policy, std::int64_t num_new);

// Rows have the scores of everything read; those of voting policies are in `choice`.
void finish_prompt(const TokenPolicy& policy, const KeptMembers& layers);
// Call after a token was appended and attended to.
void finish_token(const TokenPolicy& policy, const KeptMembers& layers);

// One choice, for a KV head or for layers and heads that keep the same tokens.
struct RowChoice {
  const TokenPolicy& policy;
  std::int64_t budget = 0;
  bool spares_newcomer = false;  // the token that leaves the ring stays
};
struct ChosenRows {
  at::Tensor kept;                    // int64 by position, but as RunningLayout has them
  std::vector<std::int64_t> leaving;  // by position: dropped or merged
};
// For rows of which some leave (KeptBudget::leaving), of tokens at `positions` [n] int64 with `scores` [n] float32: decayed attention, or
// votes (undefined where the policy asks for none).
ChosenRows choose_rows(const RowChoice& choice, const at::Tensor& positions,
                       const at::Tensor& scores);

// The same under a fixed budget on any device, for several heads whose tokens are in the order of `positions`: int64
// indices.
struct RunningChoice {
  at::Tensor kept;     // [heads, layout.rows()]
  at::Tensor leaving;  // [heads, the others], ascending
};
// positions [heads, n] int64; scores [heads, n] float32, undefined where the layout has no context. Between sinks and
// ring, the context keeps the tokens of the highest scores; the later one of equals.
RunningChoice choose_running(const RunningLayout& layout, const at::Tensor& positions,
                             const at::Tensor& scores, bool spares_newcomer = false);
// By votes [n, heads] in the order of positions: the window, and before it the best, max-pooled over neighbours. Ascending,
// [budget, heads]
at::Tensor voted_rows(const TokenPolicy& policy, const at::Tensor& votes, std::int64_t budget);

// The other rows of `num_rows`, ascending.
std::vector<std::int64_t> staying_rows(std::int64_t num_rows,
                                       const std::vector<std::int64_t>& leaving);

// What else takes part in a softmax: averages of merged tokens.
struct SlotRows {
  at::Tensor key{}, value{};  // [num_slots, num_kv_heads, head_dim] float32, or undefined: none
  at::Tensor bias{};          // [num_slots, num_kv_heads] float32 added to scores
};

// As many as fit the CPU's caches, or keep a GPU busy.
std::int64_t scores_at_once(at::Device device);
// Queries of so many products each that are scored together: one at least.
std::int64_t queries_at_once(at::Device device, std::int64_t products);

// sum_i lambda^(m-1-i) a_i of the last m tokens' queries, a_i the probabilities of query i, summed over the
// query heads of a KV head. Keys, [n, num_kv_heads, head_dim] of any type, in the order of rows; slots get their
// part of the probabilities. [n, num_kv_heads] float32. At most scores_at_once() products of queries and keys
// are in memory, but at least those of one query; on the CPU those of one KV head at a time.
at::Tensor attention_scores(const PromptEnd& end, const at::Tensor& key, const SlotRows& slots);

}  // namespace kvc
