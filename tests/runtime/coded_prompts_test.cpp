// Prompts that are read through the codes of their earlier tiles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/coded_forms.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::coded_prompts_test {
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
                                     {"layer rotated", CodedScope::kLayer, kCodedPairs, true},
                                     {"group", CodedScope::kGroup}};

// Prompts are read layer by layer where the window is a number of tiles, otherwise tile by tile.
struct ExactTokens {
  std::int64_t sinks = 0, window = 0;
};

class CodedPrompts
    : public ::testing::TestWithParam<std::tuple<CodedLayerForm, bool, ExactTokens, std::string>> {
 protected:
  SyntheticCheckpoint model_{.model_type = std::get<3>(GetParam())};

  // Codes have few bits, or eight.
  KvPlan plan(bool coarse) const {
    const auto& [form, gain, exact, model_type] = GetParam();
    CodedPlanOptions options = form.options(gain);
    options.codes_prompts = true;
    if (coarse) {
      testing::coarsen(options);
    }
    KvPlan plan = coded_plan(model_, options);
    plan.compression.sink_tokens = exact.sinks;
    plan.compression.window_tokens = exact.window;
    return plan;
  }
};

TEST_P(CodedPrompts, EightBitsOfAllCoefficientsAreNearlyExact) {
  const auto engine = load(model_, plan(false));
  const at::Tensor expected = testing::plain_logits(model_, coded_ids());
  // Without gains codes end at +-4, which gemma2's tokens exceed.
  const bool is_cut = std::get<3>(GetParam()) == "gemma2" && !std::get<1>(GetParam());
  EXPECT_LT(mean_error(cut(*engine, {100, 1}), expected), is_cut ? 0.2 : 0.02);
}

// However a text is cut into prompts, pieces of one, and generated tokens.
TEST_P(CodedPrompts, DoNotDependOnTheCut) {
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
  const ExactTokens& tokens = std::get<2>(GetParam());
  const std::int64_t first = tokens.sinks + tokens.window + kTileTokens;  // that reads codes
  EXPECT_LT(mean_error(whole.narrow(0, 0, first), exact.narrow(0, 0, first)), kRounding);
  EXPECT_GT(mean_error(whole[first], exact[first]), 10 * kRounding);
}

INSTANTIATE_TEST_SUITE_P(All, CodedPrompts,
                         ::testing::Combine(::testing::ValuesIn(kForms), ::testing::Bool(),
                                            ::testing::Values(ExactTokens{}, ExactTokens{2, 0}),
                                            ::testing::Values("llama", "qwen3", "gemma2")));
INSTANTIATE_TEST_SUITE_P(Windows, CodedPrompts,
                         ::testing::Combine(::testing::ValuesIn(kForms), ::testing::Values(true),
                                            ::testing::Values(ExactTokens{0, 32},
                                                              ExactTokens{3, 7}),
                                            ::testing::Values("llama", "gemma2")));

TEST(CodedPromptBytes, AreTheFormulasAndTheForecastsAtEveryStep) {
  const SyntheticCheckpoint model;
  for (const std::int64_t page : {32, 64}) {
    for (const CodedScope scope : {CodedScope::kHead, CodedScope::kLayer, CodedScope::kGroup}) {
      const KvPlan plan = coded_plan(
          model,
          {.scope = scope, .coefficients = {0, 3, 0, 5}, .gain = true, .codes_prompts = true});
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
      EXPECT_EQ(sequence.cache().coded(0).num_codes(), (kCodedTokens + 37 - 2) / 32 * 32);
    }
  }
}

// A prompt of several steps, of which some become codes before the next.
TEST(CodedPromptBytes, ArePeaksOfStepsWhereLayersReadOneAfterTheOther) {
  const SyntheticCheckpoint model;
  for (const std::int64_t window : {0, 32}) {
    KvPlan plan = coded_plan(model, {.scope = CodedScope::kHead, .codes_prompts = true});
    plan.compression.sink_tokens = 0;
    plan.compression.window_tokens = window;
    const auto engine = load(model, plan, testing::cache_of("bfloat16"));
    const std::int64_t page = engine->pool().page_tokens();
    Sequence sequence = engine->new_sequence();
    CacheForecast forecast(plan, KvDtype::kBFloat16, page);
    for (const std::int64_t length : {1500, 2000}) {  // the second from a step's middle on
      engine->prefill({&sequence}, {coded_ids(length)}, Engine::Rows::kLast);
      EXPECT_EQ(forecast.read(length), engine->pool().peak_bytes());
      EXPECT_EQ(forecast.bytes(), engine->pool().allocated_bytes());
      testing::expect_exact_bytes(*engine, sequence);
    }
  }
}

// Tokens of plain layers become integers in blocks all the same.
TEST(CodedPromptsBeside, PlainLayersUnderAnIntegerType) {
  const SyntheticCheckpoint model;
  KvPlan plan = coded_plan(model, {.scope = CodedScope::kLayer, .codes_prompts = true});
  plan.layers.front() = KvSource::kPlain;
  plan.coded.erase(plan.coded.begin());
  const auto engine = load(model, plan, testing::cache_of("int8"));
  Sequence sequence = engine->new_sequence();
  const at::Tensor logits = testing::cached_logits(*engine, coded_ids(), 100, 1, sequence);
  EXPECT_LT(mean_error(logits, testing::plain_logits(model, coded_ids())), 0.03);
  EXPECT_EQ(sequence.cache().plain_layer(0).num_codes(), 128);
  EXPECT_EQ(sequence.cache().coded(1).num_codes(), (kCodedTokens - 2) / 32 * 32);
  testing::expect_exact_bytes(*engine, sequence);
}

TEST(CodedPromptRefusals, NameTheWayOut) {
  const SyntheticCheckpoint model{.hidden_size = 64};
  KvPlan plan = coded_plan(model, {.scope = CodedScope::kHead, .codes_prompts = true});
  EngineOptions options;
  options.policy = parse_token_policy("h2o:budget=16");
  EXPECT_THAT(error_of([&] { load(model, plan, options); }),
              ::testing::HasSubstr("convert without --prefill, or leave --policy out"));
  plan.coded.clear();
  plan.layers.assign(plan.layers.size(), KvSource::kPlain);
  EXPECT_THAT(error_of([&] { plan.check(); }),
              ::testing::HasSubstr("prefill coded without coded layers"));
}

}  // namespace
}  // namespace kvc::coded_prompts_test
