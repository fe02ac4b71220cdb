// Elastic memory: keys and values of latents, rebuilt once and stored beside them, so attention reads
// them like a plain layer's. They equal what attention would rebuild in every step.
#pragma once

#include <cstdint>

#include "core/kv_plan_bytes.h"
#include "model/decoder.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Rebuilds latents of `group` in order until `rows` have keys and values (merged tokens, then tokens
// with a latent per layer).
void expand_group(const Decoder& decoder, const LatentFactors& factors, const StoreOptions& options,
                  int group, std::int64_t rows, KvCache& cache);
// Drops all but `rows` of them.
void shrink_expansion(std::int64_t rows, LatentStore& store);
std::int64_t expanded_rows(const LatentStore& store);
// All latents that can be rebuilt; none if they are the model's own.
std::int64_t latent_rows_of(const KvPlan& plan, int group, const GroupTokens& tokens);

// 2*G*kv_dim*b, with b of exact tokens.
std::int64_t expansion_row_bytes(const KvPlan& plan, int group, KvDtype dtype);

// Bytes of a group's rebuilt keys and values, of merged tokens and of tokens with a latent per layer:
// 2*G*kv_dim*b each, with b of exact tokens, every count rounded up to `page_tokens`. None under plan.selective.
std::int64_t expansion_bytes(const KvPlan& plan, int group, const GroupTokens& tokens,
                             KvDtype dtype, std::int64_t page_tokens);

}  // namespace kvc
