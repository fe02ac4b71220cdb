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

// Both settings' logits from whole rows as prompts.
ModelRun read_whole(Engine& engine, const TokenRows& rows, std::vector<Sequence>& sequences,
                    std::int64_t block_tokens) {
  const std::int64_t bytes_before = engine.pool().allocated_bytes();
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

// Reads what follows the prompts again, from the cache that read_whole() left: the last blocks first, each behind the tokens
// before it. A block's first token is predicted by its prompt.
void reread_blocks(Engine& engine, const TokenRows& rows, std::vector<Sequence>& sequences,
                   std::int64_t block_tokens, ContinuationRun& run) {
  std::int64_t num_blocks = 1, longest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    run.logits[i] = run.logits[i].clone();
    longest = std::max(longest, run.logits[i].size(0));
  }
  if (block_tokens > 0) {
    num_blocks = (longest + block_tokens - 1) / block_tokens;
  }
  for (std::int64_t block = num_blocks - 1; block >= 0; --block) {
    std::vector<Sequence*> active;
    TokenRows texts;
    std::vector<at::Tensor> targets;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t scored = run.logits[i].size(0), begin = block * block_tokens;
      if (begin >= scored) {
        continue;
      }
      const std::int64_t count = block_tokens > 0 ? std::min(block_tokens, scored - begin) : scored;
      const auto first = rows[i].end() - scored + begin;
      engine.rewind(sequences[i], first - rows[i].begin());
      active.push_back(&sequences[i]);
      texts.emplace_back(first, first + count);
      targets.push_back(run.logits[i].narrow(0, begin + 1, count - 1));
    }
    const std::vector<at::Tensor> logits =
        engine.extend_text(active, texts, Engine::Rows::kAll, stop_if_interrupted);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      targets[i].copy_(logits[i].narrow(0, 0, targets[i].size(0)));
    }
  }
}

// Reads whole rows once for both settings, and what follows their prompts again where the cache rounds what it keeps.
ModelRun run_once(Engine& engine, const TokenRows& rows, std::int64_t block_tokens) {
  std::vector<Sequence> sequences = new_sequences(engine, rows.size());
  ModelRun run = read_whole(engine, rows, sequences, block_tokens);
  if (!engine.continues_as_prompts()) {
    reread_blocks(engine, rows, sequences, block_tokens, run.continuation);
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
  if (engine.continues_as_prompts() || (block_tokens > 0 && engine.can_rewind())) {
    return run_once(engine, rows, block_tokens).continuation;
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
  if (engine.continues_as_prompts() || engine.can_rewind()) {
    return run_once(engine, rows, block_tokens);
  }
  return {teacher_forced_logits(engine, rows), continue_rows(engine, rows, block_tokens)};
}

}  // namespace kvc
