// Recall: a list of facts ("red ball 42"), and the same facts again in another order, whose numbers a model can only know
// from their first mention.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace kvc {

struct RecallPrompt {
  std::vector<std::int64_t> ids;
  std::int64_t num_facts_ids = 0;  // first ids: the facts, read before any question
  // Ids of the numbers asked for: first, count.
  std::vector<std::pair<std::int64_t, std::int64_t>> answers;
};
// 20 facts and their questions with right answers. Equal seeds give equal prompts.
RecallPrompt make_recall_prompt(const Tokenizer& tokenizer, std::uint64_t seed);

}  // namespace kvc
