// Deciding pending tokens of a sequence: candidates of all latent groups, one selection,
// compaction. And, under an integer type, tokens that become codes.
#pragma once

#include <cstdint>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Does a group decide which tokens merge? One whose projections are replaced does not: it stores every
// token as a latent at once.
bool decides(const LatentGroup& group);
// Tokens that are neither decided nor sinks. 0 for a plan whose groups decide nothing.
std::int64_t undecided_tokens(const KvCache& cache);
// Tokens that can still be appended before a block leaves the window and is decided, or becomes codes.
std::int64_t tokens_until_block(const KvCache& cache);

// Decides the `count` oldest undecided tokens in every group.
void compress(const Decoder& decoder, const LatentFactors& factors, KvDtype dtype,
              std::int64_t page_tokens, std::int64_t count, KvCache& cache);

// Makes codes of the tokens of coded layers that left the window, as far as they fill blocks of
// kQuantisedTokens; under integer types also of those of plain layers, and of unmerged ones.
void quantise(const Decoder& decoder, const CodedFactors& factors, KvCache& cache);

}  // namespace kvc
