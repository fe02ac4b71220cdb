#include "validate/model_run.h"

#include <gtest/gtest.h>

#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {
namespace {

constexpr double kRounding = 2e-4;  // logits of order 1

double error(const at::Tensor& found, const at::Tensor& expected) {
  return found.sizes() == expected.sizes() ? (found - expected).abs().mean().item<double>() : 1;
}

// What run_rows() gives, by one prompt for every block.
at::Tensor continued(const Engine& engine, const std::vector<std::int64_t>& row,
                     std::int64_t block_tokens) {
  const auto length = static_cast<std::int64_t>(row.size());
  std::vector<at::Tensor> logits;
  for (std::int64_t begin = first_scored(length, block_tokens), end = 0; begin < length;
       begin = end) {
    end = block_tokens > 0 ? std::min(begin + block_tokens, length) : length;
    Sequence sequence = engine.new_sequence();
    logits.push_back(
        engine.prefill({&sequence}, {{row.begin(), row.begin() + begin}}, Engine::Rows::kLast)
            .front());
    const at::Tensor behind =
        engine.extend({&sequence}, {{row.begin() + begin, row.begin() + end}}, Engine::Rows::kAll)
            .front();
    logits.push_back(behind.narrow(0, 0, end - begin - 1));
  }
  return at::cat(logits);
}

TEST(ModelRun, SettingsThatShareAPassGiveTheLogitsOfEach) {
  const TemporaryDirectory directory;
  const SyntheticCheckpoint model{.seed = 3};
  write_synthetic_checkpoint(directory.path(), model);
  TokenRows rows = random_ids(3, 90, model.vocab_size, 1);
  rows[1].resize(40);
  rows[2].resize(2);
  for (const char* kv_dtype : {"float32", "bfloat16", "int8"}) {
    EngineOptions options;
    options.kv_dtype = kv_dtype;
    Engine engine = Engine::load(directory.path(), options);
    for (const std::int64_t block_tokens : {0, 1, 16, 1000}) {
      const ModelRun run = run_rows(engine, rows, block_tokens);
      const ContinuationRun alone = continue_rows(engine, rows, block_tokens);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto name = std::string(kv_dtype) + ", blocks of " + std::to_string(block_tokens) +
                          ", row " + std::to_string(i);
        Sequence sequence = engine.new_sequence();
        const at::Tensor exact =
            engine.prefill({&sequence}, {rows[i]}, Engine::Rows::kAll).front().slice(0, 0, -1);
        const at::Tensor expected = continued(engine, rows[i], block_tokens);
        EXPECT_LT(error(run.teacher_forced[i], exact), kRounding) << name;
        EXPECT_LT(error(run.continuation.logits[i], expected), kRounding) << name;
        EXPECT_LT(error(alone.logits[i], expected), kRounding) << name;
      }
      EXPECT_EQ(run.continuation.kv_bytes, alone.kv_bytes);
    }
  }
}

}  // namespace
}  // namespace kvc::testing
