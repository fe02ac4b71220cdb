// Decides which tokens of latent groups merge on a GPU: products there, the choice on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/compression/latent_encoding.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"

namespace kvc {

// Rows of pending tokens for which a deciding group has pages: `pending` ones now, and `more` to come or, if blocks
// are decided, up to the next block. bases: its request bases.
std::int64_t pending_capacity(const KvPlan& plan, std::int64_t bases, std::int64_t pending,
                              std::int64_t more);

// At the end of a prompt of that many tokens, all stored exactly: decides the tokens that left the window, and keeps
// pages for one block of generation.
void compress_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                         std::int64_t num_tokens);
// After a step, when each sequence's counts include the next step's token: decides the block that left the window, if
// complete. num_tokens: of each sequence now.
void compress_gpu_blocks(const GpuModel& model, GpuCache& cache,
                         const std::vector<std::int64_t>& num_tokens);

// From the pending tokens of a latent group to merged latents and scores, as runtime/compression/latent_encoding.h does
// on the CPU:
// The `count` oldest pending tokens of one sequence, sinks excluded. On the device; without scores for principal
// directions, where all tokens get latents.
EncodedTokens encode_gpu_pending(const GpuModel& model, const GpuCache& cache, int group,
                                 std::size_t sequence, std::int64_t count);
// The same with principal directions of these tokens, which become the sequence's next basis.
EncodedTokens encode_gpu_request(const GpuModel& model, GpuCache& cache, int group,
                                 std::size_t sequence, std::int64_t count);

}  // namespace kvc
