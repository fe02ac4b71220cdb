// How many of the facts of validate/tasks/recall.h two models recall.
#pragma once

#include <cstdint>

#include "model/tokenizer/tokenizer.h"
#include "runtime/engine.h"
#include "validate/validate.h"

namespace kvc {

// The facts are prefilled and compressed, the questions read through the cache with their right answers;
// a number counts where every one of its ids is the most likely one.
Recall compare_recall(Engine& reference, Engine& candidate, const Tokenizer& tokenizer,
                      std::int64_t num_prompts, std::uint64_t seed);

}  // namespace kvc
