// The decoder's attention over KV caches: new tokens are stored, then attended together with what
// the caches hold of earlier ones.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "model/decoder.h"
#include "runtime/attention/prompt_attention.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/part_times.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

enum class Pass { kPrefill, kExtend };

// One forward pass over new tokens of some sequences, caches[i] that of the batch's sequence i. Of a
// prompt that is read in pieces, prompts[i] holds what every layer has read; null or without prompts: the
// batch has all new tokens of sequence i.
class CachedAttention : public Attention {
 public:
  CachedAttention(const Decoder& decoder, const KvPlan& plan, const LatentFactors& factors,
                  std::vector<KvCache*> caches, Pass pass, std::vector<PromptKeys*> prompts = {},
                  PartTimes* times = nullptr);
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override;

 private:
  // Post-RoPE tensors of all new tokens; `latent` where the layer's group needs it; `pending_key` as
  // latent groups hold it (stores_raw_keys).
  struct NewTokens {
    at::Tensor query, key, value, latent, pending_key, key_rms;
  };
  struct Place {
    int layer = 0, group = -1, index = 0;  // index: of the layer in its group
  };
  NewTokens new_tokens(const Place& place, const AttentionInput& input, const TokenBatch& batch);
  void store(const Place& place, const NewTokens& tokens, const at::Tensor& positions,
             KvCache& cache, std::int64_t first, std::int64_t count);
  at::Tensor attend_sequence(const Place& place, const NewTokens& tokens,
                             const at::Tensor& positions, std::size_t sequence, std::int64_t first,
                             std::int64_t count);
  void weigh(const Place& place, const at::Tensor& latent);
  at::Tensor rotate(int layer, const at::Tensor& x, const TokenBatch& batch) const;

  const Decoder& decoder_;
  const KvPlan& plan_;
  const LatentFactors& factors_;
  std::vector<KvCache*> caches_;
  Pass pass_;
  std::vector<PromptKeys*> prompts_;  // one per cache
  PartTimes* times_;
  at::Tensor first_latent_, weighted_latent_;  // of the current group, all new tokens
};

}  // namespace kvc
