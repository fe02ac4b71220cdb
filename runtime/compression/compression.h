// Decides pending tokens of a sequence: candidates of all latent groups, one selection, compaction.
// Under an integer type also codes tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "model/decoder.h"
#include "runtime/compression/pending_merges.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Decides every group's counts[g] oldest tokens (sinks excluded) of a sequence of `num_tokens`.
void compress(const CompressionContext& context, const std::vector<std::int64_t>& counts,
              std::int64_t num_tokens, KvCache& cache);

// Codes the tokens of coded layers that left the window (coded_tokens); under integer types also those of plain
// layers, and unmerged ones, in whole blocks of kQuantisedTokens.
void quantise(const Decoder& decoder, const CodedFactors& factors, KvCache& cache);
// The same for one layer that is not coded.
void quantise_layer(const Decoder& decoder, int layer, KvCache& cache);

}  // namespace kvc
