// Deciding pending tokens of a sequence: candidates of all latent groups, one selection,
// compaction. And, under an integer type, tokens that become codes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "model/decoder.h"
#include "runtime/compression/pending_merges.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Does a group decide which tokens merge? One whose projections are replaced does not: it stores every
// token as a latent at once.
bool decides(const LatentGroup& group);
// How many of each group's oldest tokens that are no sinks are due while tokens are generated, [num_groups]: a whole
// block that left the window. 0 for groups that decide nothing.
std::vector<std::int64_t> due_tokens(const KvCache& cache);
// Of a group with so many pending tokens; at a prompt's end all that left the window.
std::int64_t due_tokens(const KvPlan& plan, std::int64_t pending, bool prompt_ended);
// Tokens that can still be appended before a block leaves the window and is decided, or becomes codes.
std::int64_t tokens_until_block(const KvCache& cache);

// Decides the counts[g] oldest tokens of every group that are no sinks, of a sequence of `num_tokens`.
void compress(const CompressionContext& context, const std::vector<std::int64_t>& counts,
              std::int64_t num_tokens, KvCache& cache);

// Makes codes of the tokens of coded layers that left the window, as far as they fill blocks of
// kQuantisedTokens; under integer types also of those of plain layers, and of unmerged ones.
void quantise(const Decoder& decoder, const CodedFactors& factors, KvCache& cache);
// The same of one layer that is not coded.
void quantise_layer(const Decoder& decoder, int layer, KvCache& cache);

}  // namespace kvc
