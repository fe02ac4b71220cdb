// Token policies as lists of tokens over dense attention: what engines are held to.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <vector>

#include "core/token_policy.h"
#include "tests/runtime/fused_definition.h"
#include "tests/runtime/policy_turns.h"
#include "tests/testing/temporary_directory.h"

namespace kvc::testing {

// Layers that keep the same tokens.
struct ReferenceSet {
  std::vector<int> layers;  // ascending, the first one stores keys and values
  bool shares_heads = false;
};

// float32 keys and values of every token, in every layer; which of them count is in lists.
class PolicyReference : public Attention {
 public:
  // `plan` and `sets` outlive it. Budgets are numbers of tokens; of zeromerge no contiguous merging and the paper's step.
  PolicyReference(const SyntheticCheckpoint& model, const KvPlan& plan, const TokenPolicy& policy,
                  const std::vector<ReferenceSet>& sets);

  // [ids, vocabulary]
  at::Tensor read(const Row& ids, bool is_prompt);
  // Positions that a head of a layer keeps, ascending.
  const std::vector<std::int64_t>& kept(int layer, std::int64_t kv_head) const;

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override;

 private:
  struct Choice {  // of one head, or of all that share
    std::vector<std::int64_t> kept;
    std::vector<std::vector<std::int64_t>> slots;  // members
    std::map<std::int64_t, double> scores;
  };
  struct Rows {
    at::Tensor key, value;  // [tokens, head_dim]
    at::Tensor bias;        // [rows]
  };
  const ReferenceSet& set_of(int layer) const;
  Choice& choice(const ReferenceSet& set, std::int64_t kv_head);
  Rows rows(int layer, std::int64_t kv_head, const Choice& choice) const;
  at::Tensor attend_head(int layer, std::int64_t head, const at::Tensor& query);
  void finish(const ReferenceSet& set, std::int64_t kv_head, Choice& choice);
  std::vector<std::int64_t> leaving(const Choice& choice, std::int64_t budget) const;
  void merge(const ReferenceSet& set, std::int64_t kv_head, std::int64_t token, Choice& choice);

  TemporaryDirectory directory_;
  const KvPlan& plan_;
  TokenPolicy policy_;
  const std::vector<ReferenceSet>& sets_;
  std::unique_ptr<Decoder> decoder_;
  FusedDefinition definition_;
  std::int64_t num_tokens_ = 0;  // before the pass
  bool is_prompt_ = false;
  std::map<int, at::Tensor> keys_, values_;                // [num_tokens, num_kv_heads, head_dim]
  std::map<int, std::map<std::int64_t, Choice>> choices_;  // of the first layer, of the first head
};

at::Tensor reference_turns(PolicyReference& reference, const Row& ids, const Turns& turns);

}  // namespace kvc::testing
