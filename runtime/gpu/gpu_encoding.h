// Encodes pending tokens of a latent group to merged latents and scores on a GPU, as
// runtime/compression/latent_encoding.h does on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/compression/latent_encoding.h"
#include "runtime/gpu/gpu_cache.h"
#include "runtime/gpu/gpu_model.h"

namespace kvc {

// The `count` oldest pending tokens of one sequence, sinks excluded. On the device; without scores for principal
// directions, where all tokens get latents.
EncodedTokens encode_gpu_pending(const GpuModel& model, const GpuCache& cache, int group,
                                 std::size_t sequence, std::int64_t count);
// The same with principal directions of these tokens, which become the sequence's next basis.
EncodedTokens encode_gpu_request(const GpuModel& model, GpuCache& cache, int group,
                                 std::size_t sequence, std::int64_t count);

}  // namespace kvc
