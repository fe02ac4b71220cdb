// Prompts layer by layer: every layer reads all new tokens, in pieces of bounded size, before the next
// layer begins. Activations take the memory of one piece. Attention is exact over all tokens read,
// because one layer's keys and values are small.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/error.h"
#include "model/decoder.h"
#include "runtime/attention/layer_source.h"
#include "runtime/attention/part_times.h"
#include "runtime/compression/prompt_compression.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Called repeatedly during long work; true ends it.
using Stopped = std::function<bool()>;

// A caller's `stopped` ended a call.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted", ExitCode::kInterrupted) {}
};

// One piece: consecutive new tokens of consecutive sequences.
struct PromptPiece {
  std::vector<std::size_t> sequences;  // ascending, those of the batch
  TokenBatch batch;
};

// ids[i] are the new tokens of a sequence that has num_tokens[i]. A piece has at most `most` tokens
// (0: all), but sequences of `whole` are not split.
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
