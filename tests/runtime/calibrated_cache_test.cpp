// Groups of calibrated principal directions: they encode whatever leaves the window.
#include <gtest/gtest.h>

#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::cached_logits;
using testing::kRounding;
using testing::principal_plan;
using testing::random_ids;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

constexpr std::size_t kPrompt = 60, kTokens = 90;

Row text_of(const SyntheticCheckpoint& model, std::uint64_t seed) {
  return random_ids(1, kTokens, model.vocab_size, seed).front();
}

// Layers in groups of 3 leave a last group of one.
TEST(CalibratedDirections, AreExactWhenTheyAreAll) {
  const testing::OneThread one;
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    const SyntheticCheckpoint model{.model_type = family};
    const Row ids = text_of(model, 3);
    const at::Tensor expected = testing::plain_logits(model, ids);
    for (const int layers : {1, 2, 3}) {
      for (const bool joint : {false, true}) {
        const auto engine = testing::load(
            model, principal_plan(model, layers, LatentBasis::kCalibrated, joint, 0, 0));
        for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}}) {
          Sequence sequence = engine->new_sequence();
          EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, kPrompt, chunk, sequence), expected,
                                    kRounding))
              << family << ", groups of " << layers << (joint ? ", joint" : "");
          EXPECT_GE(sequence.cache().tokens().front().merged, 75);
          testing::expect_exact_bytes(*engine, sequence);
        }
      }
    }
  }
}

TEST(CalibratedDirections, TakeTheBytesThatAreForecast) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  const KvPlan plan = principal_plan(model, 3, LatentBasis::kCalibrated, false, 8, 12);
  for (const char* dtype : {"float32", "float16"}) {
    EngineOptions options = testing::cache_of(dtype);
    options.page_tokens = 4;
    const auto engine = testing::load(model, plan, options);
    const Row ids = text_of(model, 4);
    CacheForecast forecast(plan, engine->kv_dtype(), 4);
    Sequence sequence = engine->new_sequence();
    engine->prefill({&sequence}, {testing::part(ids, 0, kPrompt)}, Engine::Rows::kLast);
    forecast.read(kPrompt);
    EXPECT_EQ(forecast.bytes(), sequence.cache().allocated_bytes());
    for (std::size_t i = kPrompt; i < kTokens; ++i) {
      engine->extend({&sequence}, {testing::part(ids, i, i + 1)}, Engine::Rows::kLast);
      forecast.extend(1);
      testing::expect_exact_bytes(*engine, sequence);
      ASSERT_EQ(forecast.bytes(), sequence.cache().allocated_bytes()) << dtype << " at " << i;
    }
  }
}

// Longer than what is encoded before the first exact rows go.
TEST(CalibratedDirections, ReplaceALongPromptPartByPart) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  constexpr std::size_t kLong = 2250;
  const Row ids = random_ids(1, kLong + 20, model.vocab_size, 7).front();
  const auto engine =
      testing::load(model, principal_plan(model, 2, LatentBasis::kCalibrated, true, 0, 0));
  Sequence sequence = engine->new_sequence();
  EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, kLong, 5, sequence),
                            testing::plain_logits(model, ids), kRounding));
  EXPECT_GE(sequence.cache().tokens().front().merged, kLong);
  testing::expect_exact_bytes(*engine, sequence);
}

// Ranks of 32 store codes; what they lose is little.
TEST(CalibratedDirections, StoreIntegers) {
  const SyntheticCheckpoint model{.model_type = "llama"};
  const KvPlan plan = principal_plan(model, 2, LatentBasis::kCalibrated, false, 0, 0);
  const Row ids = text_of(model, 5);
  const auto engine = testing::load(model, plan, testing::cache_of("int8"));
  Sequence sequence = engine->new_sequence();
  const at::Tensor logits = cached_logits(*engine, ids, kPrompt, 1, sequence);
  testing::expect_exact_bytes(*engine, sequence);
  EXPECT_TRUE(sequence.cache().group(0).merged().has_codes());
  const at::Tensor expected = testing::plain_logits(model, ids);
  EXPECT_TRUE(tensors_close(logits, expected, 0.05 * testing::spread(expected)));
}

TEST(CalibratedDirections, AreRebuiltOnceWhereMemoryIsLeft) {
  const SyntheticCheckpoint model{.model_type = "qwen3"};
  const KvPlan plan = principal_plan(model, 2, LatentBasis::kCalibrated, false, 8, 12);
  const Row ids = text_of(model, 6);
  EngineOptions roomy = testing::pages_of(4);
  roomy.memory_bytes = 1 << 22;
  const auto tight = testing::load(model, plan, testing::pages_of(4));
  const auto elastic = testing::load(model, plan, roomy);
  Sequence sequence = elastic->new_sequence();
  const at::Tensor logits = cached_logits(*elastic, ids, kPrompt, 1, sequence);
  EXPECT_GT(sequence.cache().bytes().expanded, 0);
  EXPECT_TRUE(tensors_close(logits, cached_logits(*tight, ids, kPrompt, 1), kRounding));
}

}  // namespace
}  // namespace kvc
