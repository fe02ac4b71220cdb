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

// Tokens from begin[i] to end[i] of row i are scored after a prompt of all before them.
ContinuationRun continue_from(Engine& engine, const TokenRows& rows,
                              const std::vector<std::int64_t>& begin,
                              const std::vector<std::int64_t>& end) {
  TokenRows prompts, continuations;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    prompts.emplace_back(rows[i].begin(), rows[i].begin() + begin[i]);
    continuations.emplace_back(rows[i].begin() + begin[i], rows[i].begin() + end[i]);
  }
  const std::int64_t bytes_before = engine.pool().allocated_bytes();
  std::vector<Sequence> sequences = new_sequences(engine, rows.size());
  const std::vector<at::Tensor> first =
      engine.prefill(pointers(sequences), prompts, Engine::Rows::kLast, stop_if_interrupted);
  const std::vector<at::Tensor> rest = engine.extend_text(pointers(sequences), continuations,
                                                          Engine::Rows::kAll, stop_if_interrupted);
  ContinuationRun run;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    run.logits.push_back(at::cat({first[i], rest[i].narrow(0, 0, rest[i].size(0) - 1)}));
  }
  run.kv_bytes = engine.pool().allocated_bytes() - bytes_before;
  return run;
}

// One row, block after block.
ContinuationRun continue_in_blocks(Engine& engine, const std::vector<std::int64_t>& row,
                                   std::int64_t block_tokens) {
  const auto length = static_cast<std::int64_t>(row.size());
  std::vector<at::Tensor> logits;
  ContinuationRun run;
  for (std::int64_t begin = first_scored(length, block_tokens); begin < length;
       begin += block_tokens) {
    ContinuationRun block =
        continue_from(engine, {row}, {begin}, {std::min(begin + block_tokens, length)});
    logits.push_back(std::move(block.logits.front()));
    run.kv_bytes = block.kv_bytes;
  }
  run.logits.push_back(at::cat(logits));
  return run;
}

ModelRun in_one_pass(Engine& engine, const TokenRows& rows, std::int64_t block_tokens) {
  const std::int64_t bytes_before = engine.pool().allocated_bytes();
  std::vector<Sequence> sequences = new_sequences(engine, rows.size());
  ModelRun run{.teacher_forced = engine.prefill(pointers(sequences), rows, Engine::Rows::kAll,
                                                stop_if_interrupted),
               .continuation = {}};
  run.continuation.kv_bytes = engine.pool().allocated_bytes() - bytes_before;
  for (at::Tensor& logits : run.teacher_forced) {
    const std::int64_t length = logits.size(0);
    logits = logits.narrow(0, 0, length - 1);
    run.continuation.logits.push_back(logits.slice(0, first_scored(length, block_tokens) - 1));
  }
  return run;
}

}  // namespace

std::vector<at::Tensor> teacher_forced_logits(Engine& engine, const TokenRows& rows) {
  TokenRows inputs;  // the last token predicts nothing that is known
  for (const auto& row : rows) {
    inputs.emplace_back(row.begin(), row.end() - 1);
  }
  std::vector<Sequence> sequences = new_sequences(engine, rows.size());
  return engine.prefill(pointers(sequences), inputs, Engine::Rows::kAll, stop_if_interrupted);
}

ContinuationRun continue_rows(Engine& engine, const TokenRows& rows, std::int64_t block_tokens) {
  if (engine.continues_as_prompts()) {
    return in_one_pass(engine, rows, block_tokens).continuation;
  }
  if (block_tokens == 0) {
    std::vector<std::int64_t> begin, end;
    for (const auto& row : rows) {
      end.push_back(static_cast<std::int64_t>(row.size()));
      begin.push_back(first_scored(end.back(), block_tokens));
    }
    return continue_from(engine, rows, begin, end);
  }
  ContinuationRun run;
  for (const auto& row : rows) {
    ContinuationRun of_row = continue_in_blocks(engine, row, block_tokens);
    run.logits.push_back(std::move(of_row.logits.front()));
    run.kv_bytes += of_row.kv_bytes;
  }
  return run;
}

ModelRun run_rows(Engine& engine, const TokenRows& rows, std::int64_t block_tokens) {
  if (engine.continues_as_prompts()) {
    return in_one_pass(engine, rows, block_tokens);
  }
  return {teacher_forced_logits(engine, rows), continue_rows(engine, rows, block_tokens)};
}

}  // namespace kvc
