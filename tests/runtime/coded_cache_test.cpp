// Coded layers in the engine: exactness, bytes, forks and types.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "model/row_products.h"
#include "tests/runtime/coded_forms.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::coded_ids;
using testing::CodedLayerForm;
using testing::CodedPlanOptions;
using testing::CodedScope;
using testing::kCodedPairs;
using testing::kCodedTokens;
using testing::kRounding;
using testing::load;
using testing::mean_error;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

// Logits of a continuation that reads codes.
at::Tensor continued(const Engine& engine, std::size_t chunk = 1) {
  return testing::cached_logits(engine, coded_ids(), 100, chunk).narrow(0, 100, kCodedTokens - 100);
}

constexpr CodedLayerForm kForms[] = {{"head", CodedScope::kHead},
                                     {"layer", CodedScope::kLayer},
                                     {"group", CodedScope::kGroup},
                                     {"head keys", CodedScope::kHead, 1},
                                     {"layer keys", CodedScope::kLayer, 1},
                                     {"head blocks", CodedScope::kHead, 2},
                                     {"head pairs", CodedScope::kHead, kCodedPairs},
                                     {"layer pairs", CodedScope::kLayer, kCodedPairs},
                                     {"head rotated", CodedScope::kHead, kCodedPairs, true},
                                     {"layer rotated", CodedScope::kLayer, kCodedPairs, true}};

class CodedForms : public ::testing::TestWithParam<std::tuple<CodedLayerForm, bool, std::string>> {
};

TEST_P(CodedForms, EightBitsOfAllCoefficientsAreNearlyExact) {
  const auto [form, gain, model_type] = GetParam();
  SyntheticCheckpoint model{.model_type = model_type};
  model.num_layers = 3;
  const auto engine = load(model, coded_plan(model, form.options(gain)));
  Sequence sequence = engine->new_sequence();
  const at::Tensor actual = testing::cached_logits(*engine, coded_ids(), 100, 1, sequence);
  const at::Tensor expected = testing::plain_logits(model, coded_ids());
  EXPECT_TRUE(tensors_close(actual.narrow(0, 0, 100), expected.narrow(0, 0, 100), kRounding));
  EXPECT_LT(mean_error(actual, expected), 0.02);
  EXPECT_GT(sequence.cache().bytes().coded, 0);
  testing::expect_exact_bytes(*engine, sequence);
}

TEST_P(CodedForms, SeveralTokensAtATimeAreAsOneAtATime) {
  const auto [form, gain, model_type] = GetParam();
  const SyntheticCheckpoint model{.model_type = model_type};
  CodedPlanOptions options = form.options(gain);
  testing::coarsen(options);
  const auto engine = load(model, coded_plan(model, options));
  // Another order of summation may take a coefficient over the border between two codes.
  EXPECT_LT(mean_error(continued(*engine, 9), continued(*engine)), kRounding);
}

// Layer by layer where the window is a number of tiles and each block of one layer.
TEST_P(CodedForms, ATextThatContinuesIsReadAsOneTokenAtATime) {
  const auto [form, gain, model_type] = GetParam();
  const SyntheticCheckpoint model{.model_type = model_type};
  CodedPlanOptions options = form.options(gain);
  testing::coarsen(options);
  const Row ids = coded_ids();
  const at::Tensor exact = testing::plain_logits(model, ids).slice(0, 41);
  for (const std::int64_t window : {0, 6, 32}) {
    KvPlan plan = coded_plan(model, options);
    plan.compression.window_tokens = window;
    const auto engine = load(model, plan);
    Sequence sequence = engine->new_sequence(), other = engine->new_sequence();
    const at::Tensor expected = testing::cached_logits(*engine, ids, 41, 1, sequence).slice(0, 41);
    engine->prefill({&other}, {testing::part(ids, 0, 41)}, Engine::Rows::kLast);
    const Row rest = testing::part(ids, 41, ids.size());
    const at::Tensor text = engine->extend_text({&other}, {rest}, Engine::Rows::kAll).front();
    // Another order of summation may take a coefficient over the border between two codes, which later tokens see.
    EXPECT_LT(mean_error(text, expected), mean_error(expected, exact) / 20) << window;
    EXPECT_EQ(other.cache().coded(0).num_codes(), sequence.cache().coded(0).num_codes());
    EXPECT_EQ(other.cache().allocated_bytes(), sequence.cache().allocated_bytes());
  }
}

TEST_P(CodedForms, APromptInPiecesIsCodedAlike) {
  const auto [form, gain, model_type] = GetParam();
  const SyntheticCheckpoint model{.model_type = model_type};
  CodedPlanOptions options = form.options(gain);
  options.coefficients[4] = 8;
  EngineOptions pieces;
  pieces.prefill_chunk = 13;
  const at::Tensor found = continued(*load(model, coded_plan(model, options), pieces));
  const at::Tensor expected = continued(*load(model, coded_plan(model, options)));
  if (has_fast_products(at::kBFloat16)) {
    EXPECT_TRUE(tensors_close(found, expected, kRounding));
    return;
  }
  // Without AVX-512 sums depend on the number of rows, and another order of summation may take a coefficient over the
  // border between two codes.
  const at::Tensor exact =
      testing::plain_logits(model, coded_ids()).narrow(0, 100, kCodedTokens - 100);
  EXPECT_LT(mean_error(found, expected), mean_error(expected, exact) / 20);
}

INSTANTIATE_TEST_SUITE_P(All, CodedForms,
                         ::testing::Combine(::testing::ValuesIn(kForms), ::testing::Bool(),
                                            ::testing::Values("llama", "qwen2", "qwen3", "mistral",
                                                              "gemma2")));

TEST(CodedCache, MoreBitsLoseLess) {
  const SyntheticCheckpoint model;
  const at::Tensor expected =
      testing::plain_logits(model, coded_ids()).narrow(0, 100, kCodedTokens - 100);
  double last = INFINITY;
  for (const int bits : {1, 2, 4, 6, 8}) {
    CodedPlanOptions options;
    options.coefficients[bits] = 2 * model.num_kv_heads * model.head_dim;
    const double error = mean_error(continued(*load(model, coded_plan(model, options))), expected);
    EXPECT_LT(error, last) << bits;
    last = error;
  }
}

TEST(CodedCache, BytesAreTheFormulasAtEveryStep) {
  const SyntheticCheckpoint model;
  for (const std::int64_t page : {32, 64}) {
    for (const CodedScope scope : {CodedScope::kHead, CodedScope::kGroup}) {
      const auto engine = load(
          model, coded_plan(model, {.scope = scope, .coefficients = {0, 3, 0, 5}, .gain = true}),
          testing::pages_of(page));
      Sequence sequence = engine->new_sequence();
      engine->prefill({&sequence}, {coded_ids(37)}, Engine::Rows::kLast);
      testing::expect_exact_bytes(*engine, sequence);
      for (const std::int64_t id : coded_ids()) {
        engine->extend({&sequence}, {{id}}, Engine::Rows::kLast);
        testing::expect_exact_bytes(*engine, sequence);
      }
      EXPECT_EQ(sequence.cache().coded(0).num_codes(), 160);
    }
  }
}

TEST(CodedCache, ForksShareCodesUntilOneWrites) {
  const SyntheticCheckpoint model;
  const auto engine = load(model, coded_plan(model, {.scope = CodedScope::kLayer}));
  Sequence sequence = engine->new_sequence();
  engine->prefill({&sequence}, {coded_ids(100)}, Engine::Rows::kLast);
  const std::int64_t alone = engine->pool().allocated_bytes();
  Sequence fork = sequence.fork();
  EXPECT_EQ(engine->pool().allocated_bytes(), alone);
  engine->extend({&fork}, {coded_ids(80)}, Engine::Rows::kLast);
  Sequence fresh = engine->new_sequence();
  engine->prefill({&fresh}, {coded_ids(100)}, Engine::Rows::kLast);
  const auto after = [&](Sequence& of) {
    return engine->extend({&of}, {{5}}, Engine::Rows::kLast).front();
  };
  EXPECT_TRUE(tensors_close(after(sequence), after(fresh), 0));
}

TEST(CodedCache, ExactRowsTakeTheStorageType) {
  const SyntheticCheckpoint model;
  const KvPlan plan = coded_plan(model, {.scope = CodedScope::kHead});
  const at::Tensor expected =
      testing::plain_logits(model, coded_ids()).narrow(0, 100, kCodedTokens - 100);
  for (const char* dtype : {"bfloat16", "float16", "int8", "int4", "int2"}) {
    const auto engine = load(model, plan, testing::cache_of(dtype));
    Sequence sequence = engine->new_sequence();
    testing::cached_logits(*engine, coded_ids(), 100, 1, sequence);
    testing::expect_exact_bytes(*engine, sequence);
    EXPECT_LT(mean_error(continued(*engine), expected), 0.03) << dtype;
  }
}

// Layers of every other kind beside coded ones, under an integer type.
TEST(CodedCache, StandsBesidePlainLayers) {
  const SyntheticCheckpoint model;
  KvPlan plan = coded_plan(model, {.scope = CodedScope::kLayer});
  plan.layers.front() = KvSource::kPlain;
  plan.coded.erase(plan.coded.begin());
  const auto engine = load(model, plan, testing::cache_of("int8"));
  Sequence sequence = engine->new_sequence();
  const at::Tensor logits = testing::cached_logits(*engine, coded_ids(), 100, 1, sequence);
  EXPECT_LT(mean_error(logits, testing::plain_logits(model, coded_ids())), 0.03);
  EXPECT_EQ(sequence.cache().plain_layer(0).num_codes(), sequence.cache().coded(1).num_codes());
  testing::expect_exact_bytes(*engine, sequence);
}

TEST(CodedCache, RefusesPagesThatAreNoTiles) {
  const SyntheticCheckpoint model;
  EXPECT_THAT(error_of([&] { load(model, coded_plan(model, {}), testing::pages_of(16)); }),
              ::testing::HasSubstr("pages of 16 tokens, expected a multiple of 32"));
}

}  // namespace
}  // namespace kvc
