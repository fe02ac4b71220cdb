// Prompts layer by layer: every layer reads all new tokens, in pieces of bounded size, before the next
// layer begins. Memory for activations is that of a piece, and attention is exact over all that was read,
// because one layer's keys and values are few.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/error.h"
#include "model/decoder.h"
#include "runtime/attention/layer_source.h"
#include "runtime/compression/prompt_compression.h"
#include "runtime/part_times.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Asked now and then by what takes long; true ends it.
using Stopped = std::function<bool()>;

// A caller's `stopped` ended a call.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted", ExitCode::kInterrupted) {}
};

// Consecutive new tokens of consecutive sequences.
struct PromptPiece {
  std::vector<std::size_t> sequences;  // ascending, those of the batch
  TokenBatch batch;
};

// ids[i] are the new tokens of a sequence that has num_tokens[i]. At most `most` tokens a piece, but
// sequences of `whole` come in one; 0: all in one piece.
std::vector<PromptPiece> pieces_of(const std::vector<std::vector<std::int64_t>>& ids,
                                   const std::vector<std::int64_t>& num_tokens,
                                   const std::vector<bool>& whole, std::int64_t most);

// Hidden states after the last layer of every piece, [tokens of the piece, hidden_size], of prompts of lengths[i] tokens.
// Stores keys and values, but leaves the caches' numbers of tokens as they are. Each layer becomes what the caches keep
// of it once it has read all pieces, through compressions[i]; without such all stays exact. Throws Interrupted.
std::vector<at::Tensor> read_pieces(const SourceContext& context,
                                    const std::vector<KvCache*>& caches,
                                    const std::vector<std::int64_t>& lengths,
                                    const std::vector<PromptPiece>& pieces,
                                    std::vector<PromptCompression>& compressions,
                                    const Stopped& stopped, PartTimes* times);

}  // namespace kvc
