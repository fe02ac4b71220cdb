#include "tests/runtime/engine_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/temporary_directory.h"

namespace kvc::testing {

Row part(const Row& ids, std::size_t first, std::size_t last) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(first),
          ids.begin() + static_cast<std::ptrdiff_t>(last)};
}

PlainModel::PlainModel(const SyntheticCheckpoint& model) {
  const TemporaryDirectory directory;
  write_synthetic_checkpoint(directory.path(), model);
  decoder_ = std::make_unique<Decoder>(Checkpoint::open(directory.path()), at::kFloat);
}

at::Tensor PlainModel::logits(const Row& ids) const {
  FullAttention attention(decoder_->config(), decoder_->rope());
  return decoder_->logits(decoder_->forward(TokenBatch::of({ids}), attention));
}

at::Tensor plain_logits(const SyntheticCheckpoint& model, const Row& ids) {
  return PlainModel(model).logits(ids);
}

EngineOptions pages_of(std::int64_t tokens) {
  EngineOptions options;
  options.page_tokens = tokens;
  return options;
}

EngineOptions cache_of(const std::string& dtype) {
  EngineOptions options;
  options.kv_dtype = dtype;
  return options;
}

std::unique_ptr<Engine> load(const SyntheticCheckpoint& model, const KvPlan& plan,
                             const EngineOptions& options) {
  const TemporaryDirectory directory;
  write_factored_checkpoint(directory.path(), model, plan);
  return std::make_unique<Engine>(Engine::load(directory.path(), options));
}

std::unique_ptr<Engine> load_plain(const SyntheticCheckpoint& model, const EngineOptions& options) {
  const TemporaryDirectory directory;
  write_synthetic_checkpoint(directory.path(), model);
  return std::make_unique<Engine>(Engine::load(directory.path(), options));
}

at::Tensor cached_logits(const Engine& engine, const Row& ids, std::size_t prefill,
                         std::size_t chunk, Sequence& sequence) {
  std::vector<at::Tensor> rows =
      engine.prefill({&sequence}, {part(ids, 0, prefill)}, Engine::Rows::kAll);
  for (std::size_t first = prefill; first < ids.size(); first += chunk) {
    const std::size_t last = std::min(ids.size(), first + chunk);
    rows.push_back(
        engine.extend({&sequence}, {part(ids, first, last)}, Engine::Rows::kAll).front());
  }
  return at::cat(rows);
}

at::Tensor cached_logits(const Engine& engine, const Row& ids, std::size_t prefill,
                         std::size_t chunk) {
  Sequence sequence = engine.new_sequence();
  return cached_logits(engine, ids, prefill, chunk, sequence);
}

CompressionSettings small_policy(MergeRule rule) {
  CompressionSettings policy;
  policy.rule = rule;
  policy.unmerged = rule == MergeRule::kNone ? UnmergedForm::kLatent : UnmergedForm::kPlain;
  policy.target_kept_ratio = 0.6;
  policy.sink_tokens = 2;
  policy.window_tokens = 6;
  policy.block_tokens = 5;
  return policy;
}

void expect_exact_bytes(const Engine& engine, const Sequence& sequence) {
  const std::int64_t page = engine.pool().page_tokens();
  EXPECT_EQ(sequence.cache().allocated_bytes(),
            plan_bytes(engine.plan(), sequence.num_tokens(), sequence.cache().tokens(),
                       engine.kv_dtype(), page, sequence.cache().pair_tokens()))
      << "at " << sequence.num_tokens() << " tokens";
  EXPECT_EQ(engine.pool().allocated_bytes(), sequence.cache().allocated_bytes());
  for (const GroupTokens& tokens : sequence.cache().tokens()) {
    EXPECT_EQ(tokens.merged + tokens.unmerged + tokens.pending, sequence.num_tokens());
  }
}

}  // namespace kvc::testing
