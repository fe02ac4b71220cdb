// The decoder's attention over KV caches: new tokens are stored, then attended to together with
// earlier ones.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "model/decoder.h"
#include "runtime/attention/layer_source.h"
#include "runtime/attention/part_times.h"
#include "runtime/attention/prompt_attention.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// One forward pass over new tokens of some sequences, caches[i] that of the batch's sequence i. For prompts, prompts[i]
// is what sequence i has read in this pass and others; empty: no prompts.
class CachedAttention : public Attention {
 public:
  CachedAttention(const SourceContext& context, std::vector<KvCache*> caches,
                  std::vector<PromptKeys*> prompts = {}, PartTimes* times = nullptr);
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override;
  // After attention in the layer to all of a prompt, whichever pass its last piece was in.
  void prompt_read(int layer, PromptCompression& prompt);

 private:
  LayerSource& source_of(int layer);
  at::Tensor attend_own(int layer, const at::Tensor& query, const NewTokens& tokens,
                        std::size_t sequence);
  NewKeyValue project(int layer, const AttentionInput& input);
  std::int64_t prompt_end(std::size_t sequence) const;
  at::Tensor rotate(int layer, const at::Tensor& x, const TokenBatch& batch) const;

  SourceContext context_;
  std::vector<KvCache*> caches_;
  std::vector<PromptKeys*> prompts_;  // one per cache, or none
  PartTimes* times_;
  std::unique_ptr<LayerSource> source_;  // of the layer that was read last
};

}  // namespace kvc
