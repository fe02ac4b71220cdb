// Beam search on a GPU: each beam is a sequence of the batch, and one that continues another's copies its cache.
#pragma once

#include <cstdint>

#include "runtime/generate.h"
#include "runtime/gpu/gpu_batch.h"

namespace kvc {

// Searches one prompt, of which the batch's options.num_beams sequences are copies; adds the results of
// search_beams() (runtime/beam_search.h) to `result`. After an interruption, prompts are not read.
void search_gpu_beams(GpuBatch& batch, const GenerateOptions& options, std::int64_t prefill_chunk,
                      GenerateResult& result);

}  // namespace kvc
