// The decoder's attention over KV caches: new tokens are stored, then attended to together with
// earlier ones.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "model/decoder.h"
#include "runtime/attention/layer_source.h"
#include "runtime/attention/prompt_attention.h"
#include "runtime/part_times.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// One forward pass over new tokens of some sequences; caches[i] is that of the batch's sequence i. For a
// prompt that is read in pieces, prompts[i] has what each layer has read; null or without prompts: the
// batch has all new tokens of sequence i.
class CachedAttention : public Attention {
 public:
  CachedAttention(const SourceContext& context, std::vector<KvCache*> caches,
                  std::vector<PromptKeys*> prompts = {}, PartTimes* times = nullptr);
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override;

 private:
  at::Tensor attend_prompt_of(int layer, const at::Tensor& query, const NewTokens& tokens,
                              std::size_t sequence) const;
  NewKeyValue project(int layer, const AttentionInput& input);
  std::int64_t prompt_end(std::int64_t count, std::size_t sequence) const;
  at::Tensor attend_stored(int layer, const at::Tensor& query, const TokenBatch& batch);
  at::Tensor rotate(int layer, const at::Tensor& x, const TokenBatch& batch) const;

  SourceContext context_;
  std::vector<KvCache*> caches_;
  std::vector<PromptKeys*> prompts_;  // one per cache
  PartTimes* times_;
  std::unique_ptr<LayerSource> source_;  // of the layer that was read last
};

}  // namespace kvc
