// Deciding pending tokens of a sequence: candidates of all latent groups, one selection,
// compaction. And, under an integer type, tokens that become codes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/compression/kv_factors.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Does a group decide which tokens merge? One whose projections are replaced does not: it stores every
// token as a latent at once.
bool decides(const LatentGroup& group);
// How many of each group's oldest tokens that are no sinks are due, [num_groups]: at a prompt's end all that left
// the window, otherwise whole blocks of them. 0 for groups that decide nothing.
std::vector<std::int64_t> due_tokens(const KvCache& cache, bool prompt_ended);
// Of a group with so many pending tokens.
std::int64_t due_tokens(const KvPlan& plan, std::int64_t pending, bool prompt_ended);
// Of a group with so many pending tokens.
std::int64_t due_tokens(const KvPlan& plan, std::int64_t pending, bool prompt_ended);
// Tokens that can still be appended before a block leaves the window and is decided, or becomes codes.
std::int64_t tokens_until_block(const KvCache& cache);

// Decides the counts[g] oldest tokens of every group that are no sinks.
void compress(const Decoder& decoder, const LatentFactors& factors, KvDtype dtype,
              std::int64_t page_tokens, const std::vector<std::int64_t>& counts, KvCache& cache);

// Makes codes of the tokens of coded layers that left the window, as far as they fill blocks of
// kQuantisedTokens; under integer types also of those of plain layers, and of unmerged ones.
void quantise(const Decoder& decoder, const CodedFactors& factors, KvCache& cache);

}  // namespace kvc
