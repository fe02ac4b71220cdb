#include "validate/recall_task.h"

#include "core/error.h"
#include "core/interrupt.h"
#include "validate/tasks/recall.h"

namespace kvc {
namespace {

// Logits that predict the ids after the facts. [ids - num_facts_ids, vocab_size]
at::Tensor question_logits(Engine& engine, const RecallPrompt& prompt) {
  const auto middle = prompt.ids.begin() + prompt.num_facts_ids;
  Sequence sequence = engine.new_sequence();
  check_interrupt();
  const at::Tensor first =
      engine.prefill({&sequence}, {{prompt.ids.begin(), middle}}, Engine::Rows::kLast).front();
  const at::Tensor rest =
      engine.extend({&sequence}, {{middle, prompt.ids.end()}}, Engine::Rows::kAll).front();
  return at::cat({first, rest.narrow(0, 0, rest.size(0) - 1)});
}

std::int64_t count_right(Engine& engine, const RecallPrompt& prompt) {
  const at::Tensor top = question_logits(engine, prompt).argmax(1).contiguous();
  const std::int64_t* guesses = top.const_data_ptr<std::int64_t>();
  std::int64_t right = 0;
  for (const auto& [first, count] : prompt.answers) {
    bool equal = true;
    for (std::int64_t i = first; i < first + count; ++i) {
      equal = equal && guesses[i - prompt.num_facts_ids] == prompt.ids[static_cast<std::size_t>(i)];
    }
    right += equal ? 1 : 0;
  }
  return right;
}

}  // namespace

Recall compare_recall(Engine& reference, Engine& candidate, const Tokenizer& tokenizer,
                      std::int64_t num_prompts, std::uint64_t seed) {
  Recall recall;
  for (std::int64_t i = 0; i < num_prompts; ++i) {
    const RecallPrompt prompt =
        make_recall_prompt(tokenizer, seed * 1'000'003 + static_cast<std::uint64_t>(i));
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    KVC_CHECK(length <= reference.config().max_position_embeddings,
              "the recall task takes {} tokens, the model's context is {}", length,
              reference.config().max_position_embeddings);
    recall.num_asked += static_cast<std::int64_t>(prompt.answers.size());
    recall.reference_right += count_right(reference, prompt);
    recall.candidate_right += count_right(candidate, prompt);
  }
  return recall;
}

}  // namespace kvc
