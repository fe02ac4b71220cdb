#include "validate/model_run.h"

#include "core/interrupt.h"

namespace kvc {
namespace {

std::vector<Sequence> new_sequences(Engine& engine, std::size_t count) {
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < count; ++i) {
    sequences.push_back(engine.new_sequence());
  }
  return sequences;
}

std::vector<Sequence*> pointers(std::vector<Sequence>& sequences) {
  std::vector<Sequence*> result;
  for (Sequence& sequence : sequences) {
    result.push_back(&sequence);
  }
  return result;
}

}  // namespace

std::vector<at::Tensor> teacher_forced_logits(Engine& engine, const TokenRows& rows) {
  TokenRows inputs;  // the last token predicts nothing that is known
  for (const auto& row : rows) {
    inputs.emplace_back(row.begin(), row.end() - 1);
  }
  check_interrupt();
  std::vector<Sequence> sequences = new_sequences(engine, rows.size());
  return engine.prefill(pointers(sequences), inputs, Engine::Rows::kAll);
}

ContinuationRun continue_rows(Engine& engine, const TokenRows& rows) {
  TokenRows prompts, continuations;
  for (const auto& row : rows) {
    const auto middle = row.begin() + prompt_length(row);
    prompts.emplace_back(row.begin(), middle);
    continuations.emplace_back(middle, row.end());
  }
  check_interrupt();
  const std::int64_t bytes_before = engine.pool().allocated_bytes();
  std::vector<Sequence> sequences = new_sequences(engine, rows.size());
  const std::vector<at::Tensor> first =
      engine.prefill(pointers(sequences), prompts, Engine::Rows::kLast);
  check_interrupt();
  const std::vector<at::Tensor> rest =
      engine.extend(pointers(sequences), continuations, Engine::Rows::kAll);
  ContinuationRun run;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    run.logits.push_back(at::cat({first[i], rest[i].narrow(0, 0, rest[i].size(0) - 1)}));
  }
  run.kv_bytes = engine.pool().allocated_bytes() - bytes_before;
  return run;
}

}  // namespace kvc
