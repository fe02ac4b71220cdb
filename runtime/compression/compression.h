// Deciding pending tokens of a sequence: candidates of all latent groups, one selection,
// compaction. And, under an integer type, tokens that become codes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/compression/pending_merges.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Decides the counts[g] oldest tokens of every group that are no sinks, of a sequence of `num_tokens`.
void compress(const CompressionContext& context, const std::vector<std::int64_t>& counts,
              std::int64_t num_tokens, KvCache& cache);

// Makes codes of the tokens of coded layers that left the window, as far as they fill blocks of
// kQuantisedTokens; under integer types also of those of plain layers, and of unmerged ones.
void quantise(const Decoder& decoder, const CodedFactors& factors, KvCache& cache);
// The same of one layer that is not coded.
void quantise_layer(const Decoder& decoder, int layer, KvCache& cache);

}  // namespace kvc
