// Prompts in pieces: the same logits and the same cache as in one.
#include "runtime/attention/prompt_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "runtime/engine.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"
#include "tests/testing/zoo.h"

namespace kvc::prompt_reader_test {
namespace {

using testing::random_ids;
using testing::spread;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
using testing::ZooPrompt;

constexpr double kRounding = 2e-4;  // logits of order 1 after four layers in float32

using Row = std::vector<std::int64_t>;

EngineOptions options_of(std::int64_t chunk, const std::string& kv_dtype = "") {
  EngineOptions options;
  options.kv_dtype = kv_dtype;
  options.prefill_chunk = chunk;
  return options;
}

class Directory {
 public:
  explicit Directory(const SyntheticCheckpoint& model) {
    testing::write_synthetic_checkpoint(directory_.path(), model);
  }
  Directory(const SyntheticCheckpoint& model, const KvPlan& plan) {
    testing::write_factored_checkpoint(directory_.path(), model, plan);
  }
  Engine load(const EngineOptions& options) const {
    return Engine::load(directory_.path(), options);
  }

 private:
  testing::TemporaryDirectory directory_;
};

CompressionSettings policy_of(MergeRule rule, PrefillMode prefill = PrefillMode::kExact) {
  CompressionSettings policy = testing::small_policy(rule);
  policy.prefill = prefill;
  return policy;
}

void expect_equal_caches(const Sequence& actual, const Sequence& expected) {
  EXPECT_EQ(actual.num_tokens(), expected.num_tokens());
  EXPECT_EQ(actual.cache().allocated_bytes(), expected.cache().allocated_bytes());
  for (int group = 0; group < static_cast<int>(expected.cache().tokens().size()); ++group) {
    const LatentStore& a = actual.cache().group(group);
    const LatentStore& b = expected.cache().group(group);
    EXPECT_EQ(a.tokens().merged, b.tokens().merged);
    EXPECT_TRUE(at::equal(a.merged_positions().tensor(), b.merged_positions().tensor()));
    EXPECT_TRUE(at::equal(a.unmerged_positions().tensor(), b.unmerged_positions().tensor()));
  }
}

// Two turns of two sequences and some tokens after them; the first turn in pieces.
void expect_equal_in_pieces(const Directory& directory, std::int64_t vocab_size,
                            const std::string& kv_dtype = "", std::int64_t length = 43) {
  const Engine::Ids prompts = {random_ids(1, length, vocab_size, 1).front(),
                               random_ids(1, 20, vocab_size, 2).front()};
  const Engine::Ids later = random_ids(2, 15, vocab_size, 3),
                    more = random_ids(2, 9, vocab_size, 4);
  // The last bit of a key or value decides which neighbour it is rounded to.
  const double tolerance = kv_dtype.empty() ? kRounding : 10 * kRounding;
  const Engine whole = directory.load(options_of(0, kv_dtype));
  Sequence a = whole.new_sequence(), b = whole.new_sequence();
  std::vector<std::vector<at::Tensor>> expected;
  for (const auto& ids : {prompts, later}) {
    expected.push_back(whole.prefill({&a, &b}, ids, Engine::Rows::kAll));
  }
  expected.push_back(whole.extend({&a, &b}, more, Engine::Rows::kAll));
  const std::vector<std::int64_t> chunks =
      length > 50 ? std::vector<std::int64_t>{29, 64} : std::vector<std::int64_t>{1, 7, 16, 50};
  for (const std::int64_t chunk : chunks) {
    const Engine engine = directory.load(options_of(chunk, kv_dtype));
    Sequence c = engine.new_sequence(), d = engine.new_sequence();
    std::vector<std::vector<at::Tensor>> actual;
    for (const auto& ids : {prompts, later}) {
      actual.push_back(engine.prefill({&c, &d}, ids, Engine::Rows::kAll));
    }
    actual.push_back(engine.extend({&c, &d}, more, Engine::Rows::kAll));
    for (std::size_t call = 0; call < expected.size(); ++call) {
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(tensors_close(actual[call][i], expected[call][i], tolerance))
            << "chunk " << chunk << " call " << call << " sequence " << i;
      }
    }
    expect_equal_caches(c, a);
    expect_equal_caches(d, b);
  }
}

TEST(PromptPieces, HoldAtMostSoManyTokens) {
  const Engine::Ids ids = {Row(5, 1), Row(2, 2), Row(7, 3), Row(3, 4)};
  const std::vector<PromptPiece> pieces =
      pieces_of(ids, {0, 10, 0, 0}, {false, false, false, true}, 4);
  std::vector<std::vector<std::int64_t>> lengths;
  std::vector<std::vector<std::size_t>> sequences;
  std::vector<at::Tensor> positions;
  for (const PromptPiece& piece : pieces) {
    lengths.push_back(piece.batch.lengths);
    sequences.push_back(piece.sequences);
    positions.push_back(piece.batch.positions);
  }
  EXPECT_EQ(lengths, (decltype(lengths){{4}, {1, 2, 1}, {4}, {2}, {3}}));
  EXPECT_EQ(sequences, (decltype(sequences){{0}, {0, 1, 2}, {2}, {2}, {3}}));
  EXPECT_TRUE(
      at::equal(at::cat(positions),
                at::tensor({0, 1, 2, 3, 4, 10, 11, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2}, at::kLong)));
  EXPECT_EQ(pieces_of(ids, {0, 0, 0, 0}, {false, false, false, false}, 0).size(), 1u);
}

TEST(PromptPieces, PlainCache) {
  for (const SyntheticCheckpoint& model :
       {SyntheticCheckpoint{}, SyntheticCheckpoint{.model_type = "mistral", .window = 9},
        SyntheticCheckpoint{.model_type = "qwen3", .head_dim = 12, .attention_bias = true}}) {
    expect_equal_in_pieces(Directory(model), model.vocab_size);
  }
}

// Whatever the cache rounds, a new prompt is read through exact keys and values.
TEST(PromptPieces, RoundedCaches) {
  const SyntheticCheckpoint model{.head_dim = 32};
  for (const char* kv_dtype : {"bfloat16", "int8", "int4", "int2"}) {
    constexpr std::int64_t kLength = 200;  // so that plain layers have codes of some tokens
    expect_equal_in_pieces(Directory(model), model.vocab_size, kv_dtype, kLength);
    const KvPlan plan = testing::grouped_plan(model, 2, 12, policy_of(MergeRule::kLs));
    expect_equal_in_pieces(Directory(model, plan), model.vocab_size, kv_dtype, kLength);
  }
}

TEST(PromptPieces, MergedCaches) {
  const SyntheticCheckpoint model{.model_type = "qwen3"};
  for (const MergeRule rule : {MergeRule::kNone, MergeRule::kMean, MergeRule::kLs}) {
    for (const PrefillMode prefill : {PrefillMode::kExact, PrefillMode::kTruncated}) {
      if (rule == MergeRule::kLs && prefill == PrefillMode::kTruncated) {
        continue;  // encodes exact keys and values
      }
      const KvPlan plan = testing::grouped_plan(model, 2, 12, policy_of(rule, prefill));
      expect_equal_in_pieces(Directory(model, plan), model.vocab_size);
    }
  }
}

TEST(PromptPieces, LatentsPerLayer) {
  const SyntheticCheckpoint model{.model_type = "qwen2"};
  expect_equal_in_pieces(Directory(model, testing::split_plan(model, 10, 9)), model.vocab_size);
}

class ZooPieces : public ::testing::TestWithParam<std::string> {};

// Sliding windows, capped scores, latent attention, RoPE that depends on the length of the text: as
// transformers reads the whole prompt.
TEST_P(ZooPieces, GiveTheLogitsOfTransformers) {
  const testing::ZooCase zoo_case = testing::load_zoo_case(GetParam());
  EngineOptions options = options_of(5);
  options.dtype = "float32";
  const Engine engine = Engine::load(zoo_case.directory, options);
  for (const ZooPrompt& prompt : zoo_case.prompts) {
    Sequence sequence = engine.new_sequence();
    const at::Tensor logits = engine.prefill({&sequence}, {prompt.ids}, Engine::Rows::kAll).front();
    EXPECT_TRUE(tensors_close(logits, prompt.logits, 1e-5 * spread(prompt.logits)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ZooPieces, ::testing::ValuesIn(testing::zoo_names()),
                         [](const auto& row) { return row.param; });

TEST(PromptReader, StopsBetweenPieces) {
  const Directory directory(SyntheticCheckpoint{});
  const Engine engine = directory.load(options_of(8));
  const Row ids = random_ids(1, 40, 96, 5).front();
  Sequence sequence = engine.new_sequence();
  int asked = 0;
  const auto stopped = [&] { return ++asked > 7; };
  EXPECT_THROW(engine.prefill({&sequence}, {ids}, Engine::Rows::kLast, stopped), Interrupted);
  EXPECT_EQ(asked, 8);
  EXPECT_EQ(sequence.num_tokens(), 0);
  EXPECT_EQ(engine.pool().allocated_bytes(), 0);
  Sequence fresh = engine.new_sequence();
  EXPECT_TRUE(at::equal(engine.prefill({&sequence}, {ids}, Engine::Rows::kLast).front(),
                        engine.prefill({&fresh}, {ids}, Engine::Rows::kLast).front()));
}

// The last row alone and all rows are the same logits.
TEST(PromptReader, LastRowsOfABatch) {
  const Directory directory(SyntheticCheckpoint{});
  const Engine engine = directory.load(options_of(8));
  const Engine::Ids ids = {random_ids(1, 21, 96, 6).front(), random_ids(1, 3, 96, 7).front()};
  Sequence a = engine.new_sequence(), b = engine.new_sequence(), c = engine.new_sequence(),
           d = engine.new_sequence();
  const auto all = engine.prefill({&a, &b}, ids, Engine::Rows::kAll);
  const auto last = engine.prefill({&c, &d}, ids, Engine::Rows::kLast);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(last[i].size(0), 1);
    EXPECT_TRUE(tensors_close(last[i][0], all[i][all[i].size(0) - 1], 1e-6));
  }
}

}  // namespace
}  // namespace kvc::prompt_reader_test
