// Coded layers whose tokens are coded in the step that writes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/coded_forms.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
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
using testing::part;
using testing::Row;
using testing::SyntheticCheckpoint;

// Logits of all tokens, where calls of `lengths` tokens, the last one repeatedly, make the sequence: a prompt, then
// extensions.
at::Tensor cut(const Engine& engine, const std::vector<std::size_t>& lengths) {
  Sequence sequence = engine.new_sequence();
  const Row ids = coded_ids();
  std::vector<at::Tensor> logits;
  for (std::size_t call = 0, done = 0; done < ids.size(); ++call) {
    const std::size_t length = lengths[std::min(call, lengths.size() - 1)];
    const std::size_t end = std::min(ids.size(), done + length);
    const Row next = part(ids, done, end);
    logits.push_back((call == 0 ? engine.prefill({&sequence}, {next}, Engine::Rows::kAll)
                                : engine.extend({&sequence}, {next}, Engine::Rows::kAll))
                         .front());
    done = end;
  }
  return at::cat(logits);
}

constexpr CodedLayerForm kForms[] = {{"head", CodedScope::kHead},
                                     {"layer", CodedScope::kLayer},
                                     {"head keys", CodedScope::kHead, 1},
                                     {"layer keys", CodedScope::kLayer, 1},
                                     {"head blocks", CodedScope::kHead, 2},
                                     {"head pairs", CodedScope::kHead, kCodedPairs},
                                     {"head rotated", CodedScope::kHead, kCodedPairs, true},
                                     {"layer rotated", CodedScope::kLayer, kCodedPairs, true}};

class CodedAtOnce
    : public ::testing::TestWithParam<std::tuple<CodedLayerForm, bool, std::int64_t, std::string>> {
 protected:
  SyntheticCheckpoint model_{.model_type = std::get<3>(GetParam())};

  // Codes have few bits, or eight.
  KvPlan plan(bool coarse) const {
    const auto& [form, gain, sinks, model_type] = GetParam();
    CodedPlanOptions options = form.options(gain);
    options.at_once = true;
    if (coarse) {
      testing::coarsen(options);
    }
    KvPlan plan = coded_plan(model_, options);
    plan.compression.sink_tokens = sinks;
    return plan;
  }
};

TEST_P(CodedAtOnce, EightBitsOfAllCoefficientsAreNearlyExact) {
  const auto engine = load(model_, plan(false));
  const at::Tensor expected = testing::plain_logits(model_, coded_ids());
  // Without gains codes end at +-4, which gemma2's tokens exceed.
  const bool is_cut = std::get<3>(GetParam()) == "gemma2" && !std::get<1>(GetParam());
  EXPECT_LT(mean_error(cut(*engine, {100, 1}), expected), is_cut ? 0.2 : 0.02);
}

// However a text is cut into prompts, pieces of one, and generated tokens.
TEST_P(CodedAtOnce, EveryTokenIsReadThroughItsCodes) {
  const auto engine = load(model_, plan(true));
  EngineOptions pieces;
  pieces.prefill_chunk = 13;
  const at::Tensor whole = cut(*engine, {kCodedTokens});
  const at::Tensor exact = testing::plain_logits(model_, coded_ids());
  // Another order of summation may take a coefficient over the border between two codes, which later tokens see.
  const double most = mean_error(whole, exact) / 20;
  EXPECT_LT(mean_error(cut(*engine, {1, 1}), whole), most);
  EXPECT_LT(mean_error(cut(*engine, {45, 9}), whole), most);
  EXPECT_LT(mean_error(cut(*load(model_, plan(true), pieces), {kCodedTokens}), whole), most);
  const auto first = std::get<2>(GetParam());  // that is coded
  EXPECT_GT(mean_error(whole[first], exact[first]), 10 * kRounding);
  EXPECT_LT(mean_error(cut(*engine, {1, 1})[first], whole[first]), kRounding);
}

INSTANTIATE_TEST_SUITE_P(All, CodedAtOnce,
                         ::testing::Combine(::testing::ValuesIn(kForms), ::testing::Bool(),
                                            ::testing::Values(0, 2),
                                            ::testing::Values("llama", "qwen3", "gemma2")));

// A group's codes exist once its last layer has run, so a step's own tokens are exact.
TEST(CodedGroupAtOnce, PromptsAreReadExactlyAndTokensAreCodedAtTheEndOfTheirStep) {
  const SyntheticCheckpoint model;
  const KvPlan plan = coded_plan(
      model,
      {.scope = CodedScope::kGroup, .coefficients = {0, 2, 3, 5}, .gain = true, .at_once = true});
  EngineOptions pieces;
  pieces.prefill_chunk = 13;
  const auto engine = load(model, plan);
  const at::Tensor logits = cut(*engine, {100, 1});
  EXPECT_TRUE(testing::tensors_close(logits.narrow(0, 0, 100),
                                     testing::plain_logits(model, coded_ids()).narrow(0, 0, 100),
                                     kRounding));
  EXPECT_LT(mean_error(cut(*load(model, plan, pieces), {100, 1}), logits), kRounding);
  Sequence sequence = engine->new_sequence();
  engine->prefill({&sequence}, {coded_ids(37)}, Engine::Rows::kLast);
  EXPECT_EQ(sequence.cache().coded(0).num_codes(), 35);
  engine->extend({&sequence}, {{5, 6}}, Engine::Rows::kLast);
  EXPECT_EQ(sequence.cache().coded(0).num_codes(), 37);
  EXPECT_EQ(sequence.cache().coded(0).num_exact(), 2);
}

TEST(CodedBytesAtOnce, AreTheFormulasAndTheForecastsAtEveryStep) {
  const SyntheticCheckpoint model;
  for (const std::int64_t page : {32, 64}) {
    for (const CodedScope scope : {CodedScope::kHead, CodedScope::kLayer, CodedScope::kGroup}) {
      const KvPlan plan = coded_plan(
          model, {.scope = scope, .coefficients = {0, 3, 0, 5}, .gain = true, .at_once = true});
      EngineOptions options = testing::cache_of("bfloat16");
      options.page_tokens = page;
      const auto engine = load(model, plan, options);
      Sequence sequence = engine->new_sequence();
      CacheForecast forecast(plan, KvDtype::kBFloat16, page);
      engine->prefill({&sequence}, {coded_ids(37)}, Engine::Rows::kLast);
      EXPECT_EQ(forecast.read(37), engine->pool().peak_bytes());
      EXPECT_EQ(forecast.bytes(), engine->pool().allocated_bytes());
      for (const std::int64_t id : coded_ids()) {
        engine->extend({&sequence}, {{id}}, Engine::Rows::kLast);
        testing::expect_exact_bytes(*engine, sequence);
        forecast.extend(1);
        ASSERT_EQ(forecast.bytes(), engine->pool().allocated_bytes());
        ASSERT_EQ(CacheForecast(sequence.cache(), KvDtype::kBFloat16, page).bytes(),
                  forecast.bytes());
      }
      EXPECT_EQ(sequence.cache().coded(0).num_codes(), kCodedTokens + 37 - 2);
    }
  }
}

TEST(CodedBytesAtOnce, TilesAreStoredWhole) {
  const SyntheticCheckpoint model;
  const KvPlan plan = coded_plan(model, {.coefficients = {0, 3, 0, 5}, .at_once = true});
  const CodedBlock& block = plan.coded.front();
  for (const std::int64_t tokens : {1, 31, 32}) {
    EXPECT_EQ(block_code_bytes(block, tokens), 32 * block.bits() / 8);
  }
  EXPECT_EQ(block_code_bytes(block, 33), 2 * 32 * block.bits() / 8);
  EXPECT_EQ(block_code_bytes(block, 33, 128), 4 * 32 * block.bits() / 8);
  EXPECT_EQ(coded_tokens(plan, 2), 0);
  EXPECT_EQ(coded_tokens(plan, 3), 1);
}

TEST(CodedForksAtOnce, ShareATileUntilOneWrites) {
  const SyntheticCheckpoint model;
  const KvPlan plan = coded_plan(model, {.scope = CodedScope::kLayer, .at_once = true});
  const auto engine = load(model, plan);
  Sequence sequence = engine->new_sequence();
  engine->prefill({&sequence}, {coded_ids(50)}, Engine::Rows::kLast);
  const std::int64_t alone = engine->pool().allocated_bytes();
  Sequence fork = sequence.fork();
  EXPECT_EQ(engine->pool().allocated_bytes(), alone);
  engine->extend({&fork}, {coded_ids(3)}, Engine::Rows::kLast);
  EXPECT_GT(engine->pool().allocated_bytes(), alone);
  Sequence fresh = engine->new_sequence();
  engine->prefill({&fresh}, {coded_ids(50)}, Engine::Rows::kLast);
  const auto after = [&](Sequence& of) {
    return engine->extend({&of}, {{5}}, Engine::Rows::kLast).front();
  };
  EXPECT_TRUE(testing::tensors_close(after(sequence), after(fresh), 0));
}

// Tokens of plain layers become integers in blocks all the same.
TEST(CodedAtOnceBeside, PlainLayersUnderAnIntegerType) {
  const SyntheticCheckpoint model;
  KvPlan plan = coded_plan(model, {.scope = CodedScope::kLayer, .at_once = true});
  plan.layers.front() = KvSource::kPlain;
  plan.coded.erase(plan.coded.begin());
  const auto engine = load(model, plan, testing::cache_of("int8"));
  Sequence sequence = engine->new_sequence();
  const at::Tensor logits = testing::cached_logits(*engine, coded_ids(), 100, 1, sequence);
  EXPECT_LT(mean_error(logits, testing::plain_logits(model, coded_ids())), 0.03);
  EXPECT_EQ(sequence.cache().plain_layer(0).num_codes(), 128);
  EXPECT_EQ(sequence.cache().coded(1).num_codes(), kCodedTokens - 2);
  testing::expect_exact_bytes(*engine, sequence);
}

template <typename Function>
std::string message_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CodedRefusalsAtOnce, NameTheWayOut) {
  const SyntheticCheckpoint model{.hidden_size = 64};
  KvPlan plan = coded_plan(model, {.scope = CodedScope::kHead, .at_once = true});
  EngineOptions options;
  options.policy = parse_token_policy("h2o:budget=16");
  EXPECT_THAT(message_of([&] { load(model, plan, options); }),
              ::testing::HasSubstr("convert without --block, or leave --policy out"));
  plan.compression.window_tokens = 6;
  EXPECT_THAT(message_of([&] { plan.check(); }),
              ::testing::HasSubstr("a window of 6 tokens beside coded blocks of 1"));
}

}  // namespace
}  // namespace kvc
