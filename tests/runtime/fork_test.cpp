#include <gtest/gtest.h>

#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::cached_logits;
using testing::kRounding;
using testing::part;
using testing::random_ids;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

Row followed_by(const Row& first, const Row& second) {
  Row ids = first;
  ids.insert(ids.end(), second.begin(), second.end());
  return ids;
}

// Two continuations of one prompt are those of sequences that never shared anything.
void expect_independent(const Engine& engine, std::int64_t vocab_size) {
  const Row prompt = random_ids(1, 190, vocab_size, 1).front();
  const Row left = random_ids(1, 48, vocab_size, 2).front();
  const Row right = random_ids(1, 48, vocab_size, 3).front();
  Sequence first = engine.new_sequence();
  engine.prefill({&first}, {prompt}, Engine::Rows::kLast);
  const std::int64_t bytes = engine.pool().allocated_bytes();
  Sequence second = first.fork();
  EXPECT_EQ(engine.pool().allocated_bytes(), bytes);
  EXPECT_EQ(second.num_tokens(), 190);
  // In turns, so that each writes where the other still reads.
  std::vector<at::Tensor> lefts, rights;
  for (std::size_t i = 0; i < 48; i += 4) {
    lefts.push_back(engine.extend({&first}, {part(left, i, i + 4)}, Engine::Rows::kAll).front());
    rights.push_back(engine.extend({&second}, {part(right, i, i + 4)}, Engine::Rows::kAll).front());
  }
  EXPECT_LT(engine.pool().allocated_bytes(),
            first.cache().allocated_bytes() + second.cache().allocated_bytes());
  first = engine.new_sequence();  // what it shared stays with the other
  const Row more = random_ids(1, 5, vocab_size, 4).front();
  rights.push_back(engine.extend({&second}, {more}, Engine::Rows::kAll).front());
  const auto apart = [&](const Row& rest) {
    return cached_logits(engine, followed_by(prompt, rest), 190, 4).slice(0, 190);
  };
  EXPECT_TRUE(tensors_close(at::cat(lefts), apart(left), kRounding));
  EXPECT_TRUE(tensors_close(at::cat(rights), apart(followed_by(right, more)), kRounding));
}

TEST(Fork, SharesMemoryAndGoesItsOwnWay) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "qwen3"};
  for (const char* dtype : {"float32", "bfloat16", "int8", "int4", "int2"}) {
    const auto plain = testing::load_plain(model, testing::cache_of(dtype));
    expect_independent(*plain, model.vocab_size);
  }
  for (const char* dtype : {"float32", "int8"}) {
    for (const MergeRule rule : {MergeRule::kNone, MergeRule::kLs}) {
      const auto merged =
          testing::load(model, testing::grouped_plan(model, 2, 16, testing::small_policy(rule)),
                        testing::cache_of(dtype));
      expect_independent(*merged, model.vocab_size);
      EXPECT_EQ(merged->pool().num_blocks(), 0);
    }
  }
}

}  // namespace
}  // namespace kvc
