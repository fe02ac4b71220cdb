#include "validate/comparer.h"

#include <utility>

#include "core/arithmetic.h"
#include "core/kv_plan_bytes.h"
#include "model/cache_plan.h"

namespace kvc {
namespace {

// `block_tokens` of the continuation setting; nothing in the other one.
void add_rows(const TokenRows& rows, const std::vector<at::Tensor>& reference,
              const std::vector<at::Tensor>& candidate, std::optional<std::int64_t> block_tokens,
              ComparisonAccumulator& accumulator) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto length = static_cast<std::int64_t>(rows[i].size());
    const std::int64_t first = block_tokens ? first_scored(length, *block_tokens) : 1;
    const at::Tensor row = at::tensor(rows[i], at::kLong);
    accumulator.add(first, score_positions(reference[i], candidate[i], row.slice(0, first)));
  }
}

}  // namespace

Comparer::Comparer(ReferenceRun& reference, KvPlan original, Engine& candidate, bool reads_alike,
                   const ValidateOptions& options)
    : reference_(reference),
      original_(std::move(original)),
      candidate_(candidate),
      block_tokens_(options.block_tokens) {
  report_.teacher_forced_ran = !reads_alike;
  if (options.by_part) {
    for (const LayerRange& layers : parts_of(candidate.plan())) {
      parts_.push_back({.layers = layers, .continuation = {}});
    }
  }
}

void Comparer::add(const TokenRows& rows) {
  const ReferenceLogits reference = reference_.logits(rows);
  const ModelRun candidate =
      report_.teacher_forced_ran
          ? run_rows(candidate_, rows, block_tokens_)
          : ModelRun{reference.teacher_forced, continue_rows(candidate_, rows, block_tokens_)};
  add_rows(rows, reference.teacher_forced, candidate.teacher_forced, std::nullopt, teacher_forced_);
  report_.kv_bytes += candidate.continuation.kv_bytes;
  add_rows(rows, reference.continuation, candidate.continuation.logits, block_tokens_,
           continuation_);
  for (Part& part : parts_) {
    Engine alone = Engine::with_part(reference_.engine(), candidate_, part.layers);
    add_rows(rows, reference.continuation, continue_rows(alone, rows, block_tokens_).logits,
             block_tokens_, part.continuation);
  }
  for (const auto& row : rows) {
    const auto tokens = static_cast<std::int64_t>(row.size());
    report_.original_kv_bytes +=
        original_bytes(original_, round_up(tokens, candidate_.pool().page_tokens()),
                       cache_dtype(candidate_.config()));
    report_.num_tokens += tokens;
    ++report_.num_sequences;
  }
}

ValidationReport Comparer::finalize() {
  report_.teacher_forced = teacher_forced_.finalize();
  report_.continuation = continuation_.finalize();
  report_.kept_ratio =
      static_cast<double>(report_.kv_bytes) / static_cast<double>(report_.original_kv_bytes);
  for (const Part& part : parts_) {
    report_.parts.push_back({part.layers, part.continuation.finalize().kl_divergence});
  }
  return report_;
}

}  // namespace kvc
