// Token policies on layers that keep the same tokens, latent groups and coded layers that are stored together: chosen by
// attention that is summed over all layers and heads.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/token_policy.h"
#include "model/decoder.h"
#include "runtime/policies/token_policies.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// The tokens of such layers, as a policy sees them: rows, of which the last ones are those that were read last.
class SharedTokens {
 public:
  SharedTokens() = default;
  SharedTokens(const SharedTokens&) = delete;
  virtual ~SharedTokens() = default;

  // Of the layer that attended, post-RoPE in a text of num_tokens. [rows, num_kv_heads, head_dim] float32
  virtual at::Tensor keys(std::int64_t num_tokens) const = 0;
  virtual SlotKeys slots(std::int64_t /*num_tokens*/) const { return {}; }  // likewise
  virtual bool has_merged() const { return false; }                         // slots are in use
  virtual at::Tensor positions() const = 0;                                 // [rows] int64
  virtual at::Tensor scores() const = 0;                                    // [rows] float32
  virtual void set_scores(const at::Tensor& scores) = 0;
  // Rows, ascending by position, leave; at a prompt's end, or after a generated token.
  virtual void remove(const std::vector<std::int64_t>& rows, bool is_step) = 0;
};

// One layer of several after it attended to new tokens of one sequence.
struct GroupAttended {
  const Decoder& decoder;
  const KvPlan& plan;
  const TokenPolicy& policy;
  int first_layer = 0, num_layers = 0, layer = 0;
  at::Tensor query;      // [n, num_heads, head_dim] post-RoPE
  at::Tensor positions;  // [n]
  std::int64_t end = 0;  // as LayerSource::attended has it

  bool is_last_layer() const { return layer + 1 == first_layer + num_layers; }
  std::int64_t budget(std::int64_t prompt_tokens) const {
    return shared_budget(plan, policy, prompt_tokens, first_layer, num_layers);
  }
};

// Layers in turn; after the last one the tokens leave that the policy does not keep.
void finish_group(const GroupAttended& attended, KeptGroup& kept, SharedTokens& tokens);

}  // namespace kvc
