// Integer caches through the engine: bytes, logits, and what does not change them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::cache_of;
using testing::cached_logits;
using testing::expect_exact_bytes;
using testing::kRounding;
using testing::load;
using testing::load_plain;
using testing::part;
using testing::plain_logits;
using testing::random_ids;
using testing::Row;
using testing::small_policy;
using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;
using testing::tensors_close;

class IntegerCache : public ::testing::Test {
  testing::OneThread one_;
};

// Root mean square of logit differences relative to that of logits.
double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).square().mean().sqrt() / expected.square().mean().sqrt())
      .item<double>();
}

std::vector<SyntheticCheckpoint> architectures() {
  const SyntheticCheckpoint llama{.attention_bias = true, .rope_type = "llama3"};
  const SyntheticCheckpoint mistral{.model_type = "mistral", .window = 150};
  const SyntheticCheckpoint narrow{.model_type = "mistral", .window = 20};
  const SyntheticCheckpoint qwen2{.model_type = "qwen2", .head_dim = 16};
  const SyntheticCheckpoint qwen3{.model_type = "qwen3"};
  const SyntheticCheckpoint gemma3{.model_type = "gemma3_text"};
  const SyntheticCheckpoint smollm3{.model_type = "smollm3"};  // layers without RoPE
  return {llama, mistral, narrow, qwen2, qwen3, gemma3, smollm3};
}

// Layers 0 and 1 in a group, the others plain.
KvPlan half_plain_plan(const SyntheticCheckpoint& model, std::int64_t rank,
                       const CompressionSettings& policy) {
  KvPlan plan = testing::grouped_plan(model, 2, rank, policy);
  plan.groups.resize(1);
  for (std::size_t layer = 2; layer < plan.layers.size(); ++layer) {
    plan.layers[layer] = KvSource::kPlain;
  }
  return plan;
}

TEST_F(IntegerCache, KeepsTheLogitsAsFarAsItsTypeDoes) {
  for (const SyntheticCheckpoint& model : architectures()) {
    const Row ids = random_ids(1, 240, model.vocab_size, 1).front();
    const at::Tensor expected = plain_logits(model, ids);
    for (const auto& [dtype, most] :
         {std::pair("int8", 0.01), std::pair("int4", 0.15), std::pair("int2", 0.8)}) {
      const auto engine = load_plain(model, cache_of(dtype));
      Sequence sequence = engine->new_sequence();
      const at::Tensor actual = cached_logits(*engine, ids, 200, 1, sequence);
      EXPECT_LT(relative_error(actual, expected), most) << model.model_type << " " << dtype;
      expect_exact_bytes(*engine, sequence);
      EXPECT_TRUE(tensors_close(actual.narrow(0, 0, 200), expected.narrow(0, 0, 200), kRounding));
    }
  }
}

// One token at a time goes through the kernel, which turns keys itself; several through tensors.
TEST_F(IntegerCache, SeveralIdsEqualOneAtATime) {
  for (const SyntheticCheckpoint& model : architectures()) {
    const Row ids = random_ids(1, 250, model.vocab_size, 2).front();
    for (const char* dtype : {"int8", "int4", "int2"}) {
      const auto engine = load_plain(model, cache_of(dtype));
      const at::Tensor one = cached_logits(*engine, ids, 170, 1);
      EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, 170, 80), one, kRounding))
          << model.model_type << " " << dtype;
    }
  }
}

TEST_F(IntegerCache, DoesNotDependOnHowAPromptIsCut) {
  const SyntheticCheckpoint model{.model_type = "qwen3"};
  const Row ids = random_ids(1, 230, model.vocab_size, 3).front();
  for (const char* dtype : {"int8", "int4", "int2"}) {
    EngineOptions options = cache_of(dtype);
    options.prefill_chunk = 0;
    const auto whole = load_plain(model, options);
    options.prefill_chunk = 50;
    const auto pieces = load_plain(model, options);
    EXPECT_TRUE(tensors_close(cached_logits(*pieces, ids, 220, 1),
                              cached_logits(*whole, ids, 220, 1), kRounding))
        << dtype;
  }
}

TEST_F(IntegerCache, LaterPromptsReadIt) {
  const SyntheticCheckpoint model{.model_type = "llama", .rope_type = "llama3"};
  const Row ids = random_ids(1, 250, model.vocab_size, 4).front();
  const auto engine = load_plain(model, cache_of("int8"));
  Sequence sequence = engine->new_sequence();
  engine->prefill({&sequence}, {part(ids, 0, 200)}, Engine::Rows::kLast);
  const at::Tensor later =
      engine->prefill({&sequence}, {part(ids, 200, 250)}, Engine::Rows::kAll).front();
  EXPECT_LT(relative_error(later, plain_logits(model, ids).slice(0, 200)), 0.01);
  expect_exact_bytes(*engine, sequence);
}

// Keys that were turned by the angles of their time become codes as they are.
TEST_F(IntegerCache, FollowsRopeThatDependsOnTheLength) {
  const SyntheticCheckpoint model{.model_type = "llama"};
  const TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory.path(), model);
  Json config = testing::synthetic_config(model);
  config["max_position_embeddings"] = 64;
  config["rope_parameters"] = {{"rope_type", "dynamic"}, {"rope_theta", 100.0}, {"factor", 4.0}};
  std::ofstream(directory / "config.json") << dump_json(config);
  const Row ids = random_ids(1, 230, model.vocab_size, 8).front();
  const Engine exact = Engine::load(directory.path(), {});
  const Engine integer = Engine::load(directory.path(), cache_of("int8"));
  const at::Tensor expected = cached_logits(exact, ids, 180, 1);
  EXPECT_LT(relative_error(cached_logits(integer, ids, 180, 1), expected), 0.01);
  EXPECT_LT(relative_error(cached_logits(integer, ids, 180, 7), cached_logits(exact, ids, 180, 7)),
            0.01);
  // A token's angles are those of its own length, however many come with it.
  EXPECT_LT(relative_error(cached_logits(exact, ids, 20, 7), cached_logits(exact, ids, 20, 1)),
            1e-5);
  EXPECT_LT(relative_error(cached_logits(exact, ids, 20, 210), cached_logits(exact, ids, 20, 1)),
            1e-5);
}

// Codes, exact tokens and pages of every kind of store, at every step.
TEST_F(IntegerCache, AllocatedBytesEqualTheFormulaAtEveryStep) {
  for (const char* type : {"llama", "qwen3"}) {
    const SyntheticCheckpoint model{.model_type = type};
    for (const MergeRule rule : {MergeRule::kNone, MergeRule::kMean, MergeRule::kLs}) {
      for (const UnmergedForm unmerged : {UnmergedForm::kPlain, UnmergedForm::kLatent}) {
        for (const auto& [dtype, page] : {std::pair("int8", 32), std::pair("int4", 64),
                                          std::pair("int2", 32), std::pair("float16", 16)}) {
          CompressionSettings policy = small_policy(rule);
          policy.unmerged = rule == MergeRule::kNone ? UnmergedForm::kLatent : unmerged;
          policy.target_kept_ratio = 0.5;
          EngineOptions options = cache_of(dtype);
          options.page_tokens = page;
          const auto engine = load(model, half_plain_plan(model, 16, policy), options);
          const Row ids = random_ids(1, 170, model.vocab_size, 5).front();
          Sequence sequence = engine->new_sequence();
          engine->prefill({&sequence}, {part(ids, 0, 80)}, Engine::Rows::kLast);
          expect_exact_bytes(*engine, sequence);
          for (std::size_t i = 80; i < ids.size(); i += 3) {
            engine->extend({&sequence}, {part(ids, i, i + 3)}, Engine::Rows::kLast);
            expect_exact_bytes(*engine, sequence);
          }
        }
      }
    }
  }
}

TEST_F(IntegerCache, LatentsAndUnmergedTokensKeepTheLogits) {
  for (const char* type : {"llama", "qwen3"}) {
    const SyntheticCheckpoint model{.model_type = type, .attention_bias = true};
    const Row ids = random_ids(1, 150, model.vocab_size, 6).front();
    for (const MergeRule rule : {MergeRule::kNone, MergeRule::kLs}) {
      CompressionSettings policy = small_policy(rule);
      policy.target_kept_ratio = rule == MergeRule::kLs ? 2 : policy.target_kept_ratio;
      const auto engine =
          load(model, half_plain_plan(model, model.hidden_size, policy), cache_of("int8"));
      EXPECT_LT(relative_error(cached_logits(*engine, ids, 100, 4), plain_logits(model, ids)), 0.02)
          << type << " " << to_string(rule);
    }
  }
}

TEST_F(IntegerCache, MergedLatentsLoseLittleMore) {
  const SyntheticCheckpoint model{.model_type = "qwen3"};
  const Row ids = random_ids(1, 150, model.vocab_size, 7).front();
  CompressionSettings policy = small_policy(MergeRule::kLs);
  policy.target_kept_ratio = 1e-6;  // everything that may merge does, whatever the type
  const KvPlan plan = testing::grouped_plan(model, 2, 16, policy);
  const auto exact = load(model, plan), integer = load(model, plan, cache_of("int8"));
  Sequence a = exact->new_sequence(), b = integer->new_sequence();
  const at::Tensor expected = cached_logits(*exact, ids, 100, 1, a);
  EXPECT_LT(relative_error(cached_logits(*integer, ids, 100, 1, b), expected), 0.02);
  EXPECT_EQ(a.cache().tokens().front().merged, b.cache().tokens().front().merged);
  EXPECT_LT(b.cache().bytes().merged * 2, a.cache().bytes().merged);
}

// Keys far beyond float16 saturate where the model computes in float32.
TEST_F(IntegerCache, LargeNumbersStayFinite) {
  const KvPlan plan = plain_plan(1, 2, 8);
  KeyValueStore store = plain_store(
      plan, {.pool = std::make_shared<KvPool>(32), .dtype = at::kHalf, .codes = KvElement::kInt8});
  const at::Tensor rows = at::full({64, 2, 8}, 1e6).copysign(testing::random_normal({64, 2, 8}, 1));
  store.append(rows, rows);
  store.quantise(0, 32, [](const at::Tensor& key, std::int64_t) { return key; });
  for (const at::Tensor& kept : {store.key.rows(at::kFloat), store.key_codes->rows(at::kFloat),
                                 store.value_codes->rows(at::kFloat)}) {
    EXPECT_TRUE(kept.isfinite().all().item<bool>());
    EXPECT_GT(kept.abs().min().item<float>(), 6e4);
  }
}

}  // namespace
}  // namespace kvc
