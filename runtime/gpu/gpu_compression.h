// Deciding which tokens of latent groups merge, on a GPU: products there, the choice on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/compression/latent_encoding.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"

namespace kvc {

// Rows that a group which decides has pages for, of pending tokens: of `pending` ones now, and of `more` to come or
// until a block of them is decided, if any will be. bases: of the request, that it has.
std::int64_t pending_capacity(const KvPlan& plan, std::int64_t bases, std::int64_t pending,
                              std::int64_t more);

// At the end of a prompt of so many tokens, of which the cache holds all, exactly: what has left the window is decided,
// and pages stay for what one block of generation adds.
void compress_gpu_prompt(const GpuModel& model, GpuCache& cache, std::size_t sequence,
                         std::int64_t num_tokens);
// A step has fed one more token to every sequence, whose counts include that of the next step: decides the block that
// has left the window, if it is whole. num_tokens: of each sequence now.
void compress_gpu_blocks(const GpuModel& model, GpuCache& cache,
                         const std::vector<std::int64_t>& num_tokens);

// From the pending tokens of a latent group to merged latents and scores, as runtime/compression/latent_encoding.h does
// on the CPU:
// The `count` oldest pending tokens of one sequence that are no sinks. On the device; of principal directions, under
// which all tokens get latents, without scores.
EncodedTokens encode_gpu_pending(const GpuModel& model, const GpuCache& cache, int group,
                                 std::size_t sequence, std::int64_t count);
// The same with principal directions of these tokens, which become the sequence's next basis.
EncodedTokens encode_gpu_request(const GpuModel& model, GpuCache& cache, int group,
                                 std::size_t sequence, std::int64_t count);

}  // namespace kvc
