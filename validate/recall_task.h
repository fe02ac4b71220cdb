// The recall task: a list of facts ("red ball 42") and then the same facts in another order, whose numbers a
// model can only know from their first mention. The bundled model has learned it.
#pragma once

#include <cstdint>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "runtime/engine.h"
#include "validate/validate.h"

namespace kvc {

struct RecallPrompt {
  std::vector<std::int64_t> ids;
  std::int64_t num_facts_ids = 0;  // first ids: the facts, read before any question
  // Ids of the numbers asked for: first, count.
  std::vector<std::pair<std::int64_t, std::int64_t>> answers;
};
// 20 facts. Equal seeds give equal prompts.
RecallPrompt make_recall_prompt(const Tokenizer& tokenizer, std::uint64_t seed);

// The facts are prefilled and compressed, the questions read through the cache with their right answers;
// a number counts where every one of its ids is the most likely one.
Recall compare_recall(Engine& reference, Engine& candidate, const Tokenizer& tokenizer,
                      std::int64_t num_prompts, std::uint64_t seed);

}  // namespace kvc
