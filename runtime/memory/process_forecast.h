// The memory of a run's process on a CPU, before anything is read: what there is beside its KV caches.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/kv_plan.h"
#include "core/token_policy.h"
#include "model/config.h"

namespace kvc {

// Tokens of prompts that are read together.
struct PromptSizes {
  std::int64_t all = 0, longest = 0;  // of all prompts, and of one
  std::int64_t piece = 0;             // most that a layer reads at a time

  bool in_pieces() const { return longest > piece; }
};

// What prompts are read in: activations, the rows that attention reads, and the operands of products of many rows, which are
// float32 where the processor lacks instructions for 16 bits.
struct ReadingTypes {
  at::ScalarType compute = at::kFloat, attention = at::kFloat, product = at::kFloat;
  std::int64_t num_threads = 1;
};
// What this process uses on this processor.
ReadingTypes reading_types(const ModelConfig& config, at::ScalarType compute);

// Most bytes that reading takes beside weights and caches: hidden states of all tokens, exact keys and values of one layer of
// the longest prompt if it is read in pieces, activations of a piece; a quarter, of blocks that are kept for the next piece
// (BlockCache); and the buffers of attention's products in float32.
std::int64_t reading_bytes(const ModelConfig& config, const ReadingTypes& types,
                           const PromptSizes& prompts);
// What compressing them takes beside: buffers of products in float32; keys and scores of a token policy; a piece's rows where
// prompts are read through codes; what directions of a request are found with.
std::int64_t compression_bytes(const ModelConfig& config, const KvPlan& plan,
                               const TokenPolicy& policy, const PromptSizes& prompts);
// Angles of so many positions, which kernels read if keys are stored before RoPE (RopeTable::rows_of_positions).
std::int64_t angle_bytes(const ModelConfig& config, const KvPlan& plan, KvDtype kv_dtype,
                         std::int64_t positions);
// Programs and libraries of a run, which is this process as it is now, and what only a run touches: kernels' code, and what
// matrix products keep. 0 where the system does not say.
std::int64_t program_bytes();

}  // namespace kvc
