// Compresses a prompt while it is read: each layer, or layers that are stored together, when they have the whole
// prompt and no further layer reads it exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "runtime/compression/pending_merges.h"
#include "runtime/policies/principal_policy.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// The last layer that reads keys and values of plain `layer` while a prompt is read: itself or a fused one.
int last_reader(const KvPlan& plan, int layer);

// For one sequence, before its cache counts the prompt's tokens, with what layers know of each other; what a layer does
// with a prompt is in LayerSource::prompt_read. Which tokens of latent groups merge follows from the scores of all
// groups: those that are sure to merge do at once, the others wait for the last group. Under a token policy all groups
// wait for the last layer: they hold no more than what the policy keeps.
class PromptCompression {
 public:
  PromptCompression(const CompressionContext& context, std::int64_t count, KvCache& cache);

  KvCache& cache() { return cache_; }
  // Plain layers that no layer after this one reads, under an integer type.
  void code_layers_read_by(int layer);
  // The groups in turn, each after its last layer.
  void group_read(int group);
  void all_read();

 private:
  const KvPlan& plan() const { return cache_.plan(); }
  bool waits_for_all() const { return !cache_.policy().is_full(); }
  void decide(int group);
  void quantise_group(int group);

  CompressionContext context_;
  std::int64_t num_tokens_;  // of the sequence, with the prompt
  KvCache& cache_;
  std::vector<int> last_readers_;     // [num_layers], of plain layers
  std::vector<std::int64_t> counts_;  // of each group's tokens that are due
  PrincipalStep step_ = PrincipalStep::kKeepExact;
  std::optional<PendingMerges> merges_;
};

}  // namespace kvc
