// Token policies on layers that keep the same tokens, chosen by attention summed over the layers: latent groups and
// coded layers that are stored together (all heads keep the same tokens too), and plain layers (kept_plain.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/token_policy.h"
#include "model/decoder.h"
#include "runtime/policies/token_policies.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// A policy's view of the tokens of such layers: rows, the newest last.
class SharedTokens {
 public:
  SharedTokens() = default;
  SharedTokens(const SharedTokens&) = delete;
  virtual ~SharedTokens() = default;

  // Keys of the layer that attended, post-RoPE in a text of num_tokens. [rows, num_kv_heads, head_dim]
  virtual at::Tensor keys(std::int64_t num_tokens) const = 0;
  virtual SlotRows slots(std::int64_t /*num_tokens*/) const { return {}; }  // likewise
  virtual std::int64_t num_rows() const = 0;
  virtual at::Tensor scores() const = 0;  // [rows, ...] float32, as `summed` makes them
  virtual void set_scores(const at::Tensor& scores) = 0;
  // Sums scores [rows, num_kv_heads] over heads that keep the same tokens.
  virtual at::Tensor summed(const at::Tensor& scores) const = 0;
  // True if attention itself updates the scores of rows in a step, decay included.
  virtual bool scores_steps() const { return false; }
  // Drops the tokens that the policy does not keep; at a prompt's end, or after a generated token.
  virtual void choose(const TokenPolicy& policy, bool is_step, KeptGroup& kept) = 0;
};

// One choice for all heads.
class TokensOfAllHeads : public SharedTokens {
 public:
  at::Tensor summed(const at::Tensor& scores) const override { return scores.sum(1); }
  void choose(const TokenPolicy& policy, bool is_step, KeptGroup& kept) override;

 protected:
  virtual bool has_merged() const { return false; }  // slots are in use
  virtual at::Tensor positions() const = 0;          // [rows] int64
  // Drops rows, ascending by position.
  virtual void remove(const std::vector<std::int64_t>& rows, bool is_step) = 0;
};

// One of several layers, after it attended to new tokens of one sequence.
struct GroupAttended {
  const Decoder& decoder;
  const KvPlan& plan;
  const TokenPolicy& policy;
  const std::vector<int>& layers;  // ascending
  int layer = 0;                   // of them
  at::Tensor query;                // [n, num_heads, head_dim] post-RoPE
  at::Tensor positions;            // [n]
  std::int64_t end = 0;            // NewTokens::prompt_end
  bool is_scored = false;          // a step whose attention is already in the rows' scores

  bool is_last_layer() const { return layer == layers.back(); }
};

// Call for layers in turn; after the last one, drops the tokens that the policy does not keep.
void finish_group(const GroupAttended& attended, KeptGroup& kept, SharedTokens& tokens);

}  // namespace kvc
