// Elastic memory: keys and values of latents, rebuilt once and kept beside them, so that attention reads
// them as it reads a plain layer's. What they hold is what attention would rebuild in every step.
#pragma once

#include <cstdint>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/kv_cache.h"
#include "runtime/latent_factors.h"

namespace kvc {

// Rebuilds all latents of `group` that have no keys and values yet.
void expand_group(const Decoder& decoder, const LatentFactors& factors, const StoreOptions& options,
                  int group, KvCache& cache);

// Bytes of a group's rebuilt keys and values, of merged tokens and of tokens with a latent per layer:
// 2*G*kv_dim*b each, every count rounded up to `page_tokens`. b as of exact tokens.
std::int64_t expansion_bytes(const KvPlan& plan, int group, const GroupTokens& tokens,
                             KvDtype dtype, std::int64_t page_tokens);

}  // namespace kvc
