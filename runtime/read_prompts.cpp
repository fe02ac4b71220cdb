#include "runtime/read_prompts.h"

#include <algorithm>

namespace kvc {

std::vector<at::Tensor> read_prompts(const Engine& engine, const Engine::Ids& prompts,
                                     const GenerateOptions& options,
                                     std::vector<Sequence>& sequences) {
  const auto rows = options.all_logits ? Engine::Rows::kAll : Engine::Rows::kLast;
  Engine::Ids heads, tails;
  std::vector<Sequence*> all, with_tail;
  std::vector<std::size_t> tail_indices;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto& prompt = prompts[i];
    const auto length = static_cast<std::ptrdiff_t>(prompt.size());
    const std::ptrdiff_t head = options.prefill_tokens == 0
                                    ? length
                                    : std::min<std::ptrdiff_t>(length, options.prefill_tokens);
    all.push_back(&sequences[i]);
    heads.emplace_back(prompt.begin(), prompt.begin() + head);
    if (head < length) {
      with_tail.push_back(&sequences[i]);
      tails.emplace_back(prompt.begin() + head, prompt.end());
      tail_indices.push_back(i);
    }
  }
  std::vector<at::Tensor> logits = engine.prefill(all, heads, rows, options.stopped);
  if (!with_tail.empty()) {
    const auto more = engine.extend(with_tail, tails, rows, options.stopped);
    for (std::size_t i = 0; i < tail_indices.size(); ++i) {
      at::Tensor& row = logits[tail_indices[i]];
      row = options.all_logits ? at::cat({row, more[i]}) : more[i];
    }
  }
  if (options.prompts_read) {
    options.prompts_read();
  }
  return logits;
}

}  // namespace kvc
