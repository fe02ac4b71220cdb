// Engines whose layers keep some tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/attention/kept_attention.h"
#include "runtime/memory/memory_forecast.h"
#include "runtime/policies/token_policies.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/policy_turns.h"
#include "tests/testing/error_of.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::token_policy_test {
namespace {

using testing::cached_logits;
using ::testing::HasSubstr;
using testing::kRounding;
using testing::part;
using testing::random_ids;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
using testing::two_turns;
using testing::under;

constexpr const char* kSmall[] = {"streamingllm:sink=2,window=14",
                                  "streamingllm:sink=2,window=14,pos=cache",
                                  "h2o:budget=16",
                                  "h2o:budget=0.3,sink=1",
                                  "zeromerge:budget=16",
                                  "zeromerge:budget=16,residual=3,prefill-merge=contiguous",
                                  "zeromerge:budget=0.3,sink=2",
                                  "zeromerge:budget=16,decode=released",
                                  "snapkv:budget=16,window=5",
                                  "pyramidkv:budget=16,window=5,beta=4"};
constexpr const char* kAmple[] = {"streamingllm:sink=2,window=500",
                                  "streamingllm:sink=2,window=500,pos=cache",
                                  "h2o:budget=500",
                                  "zeromerge:budget=500",
                                  "zeromerge:budget=500,residual=4,compress-at=chunk",
                                  "snapkv:budget=500",
                                  "pyramidkv:budget=500,window=5,beta=1"};

at::Tensor two_turns(const Engine& engine, const Row& ids) {
  Sequence sequence = engine.new_sequence();
  return two_turns(engine, ids, sequence);
}

const Row& text() {
  static const Row kIds = random_ids(1, 130, 96, 1).front();
  return kIds;
}

TEST(TokenPolicy, AnAmpleBudgetIsTheFullCacheToTheBit) {
  const testing::OneThread one;
  for (const char* type : {"llama", "qwen3"}) {
    const SyntheticCheckpoint model{.model_type = type};
    const at::Tensor full = two_turns(*testing::load_plain(model), text());
    for (const char* policy : kAmple) {
      if (policy == std::string(kAmple[4])) {
        continue;  // reads prompts through the cache: equal but for rounding, below
      }
      EXPECT_TRUE(at::equal(two_turns(*testing::load_plain(model, under(policy)), text()), full))
          << policy;
    }
    EXPECT_TRUE(tensors_close(two_turns(*testing::load_plain(model, under(kAmple[4])), text()),
                              full, kRounding));
  }
}

// A prompt that leaves codes, more of them, a second prompt, more again.
at::Tensor long_turns(const Engine& engine) {
  const Row ids = random_ids(1, 330, 96, 4).front();
  Sequence sequence = engine.new_sequence();
  std::vector<at::Tensor> logits{cached_logits(engine, part(ids, 0, 240), 200, 1, sequence)};
  logits.push_back(engine.prefill({&sequence}, {part(ids, 240, 290)}, Engine::Rows::kAll).front());
  for (std::size_t i = 290; i < ids.size(); ++i) {
    logits.push_back(engine.extend({&sequence}, {{ids[i]}}, Engine::Rows::kAll).front());
  }
  return at::cat(logits);
}

TEST(TokenPolicy, AnAmpleBudgetIsTheFullCacheOfIntegersToTheBit) {
  const testing::OneThread one;
  for (const char* type : {"llama", "qwen3"}) {
    const SyntheticCheckpoint model{
        .model_type = type, .head_dim = 16, .max_position_embeddings = 512};
    for (const char* dtype : {"int8", "int4"}) {
      const at::Tensor full = long_turns(*testing::load_plain(model, under("full", dtype)));
      EXPECT_FALSE(
          at::equal(long_turns(*testing::load_plain(model, under("full", "float16"))), full));
      for (const char* policy : kAmple) {
        if (policy != std::string(kAmple[4])) {
          EXPECT_TRUE(
              at::equal(long_turns(*testing::load_plain(model, under(policy, dtype))), full))
              << type << " " << policy << " " << dtype;
        }
      }
    }
  }
}

TEST(TokenPolicy, ASmallBudgetChangesWhatFollowsThePrompt) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const at::Tensor full = two_turns(*testing::load_plain(model), text());
  for (const char* policy : kSmall) {
    const at::Tensor small = two_turns(*testing::load_plain(model, under(policy)), text());
    EXPECT_TRUE(at::equal(small.slice(0, 0, 40), full.slice(0, 0, 40))) << policy;
    EXPECT_FALSE(tensors_close(small.slice(0, 100), full.slice(0, 100), 1e-2)) << policy;
  }
}

TEST(TokenPolicy, PiecesBatchesAndStepsDoNotMatter) {
  const testing::OneThread one;
  for (const char* policy : kSmall) {
    SCOPED_TRACE(policy);
    testing::expect_same_in_pieces_and_batches(
        [](const EngineOptions& options) { return testing::load_plain({}, options); },
        under(policy), text());
  }
}

TEST(TokenPolicy, ForksGoTheirOwnWay) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  for (const char* policy : kSmall) {
    const auto engine = testing::load_plain(model, under(policy));
    const at::Tensor expected = two_turns(*engine, text());
    Sequence sequence = engine->new_sequence();
    engine->prefill({&sequence}, {part(text(), 0, 40)}, Engine::Rows::kLast);
    Sequence fork = sequence.fork();
    engine->extend({&fork}, {random_ids(1, 30, 96, 5).front()}, Engine::Rows::kLast);
    const at::Tensor after =
        engine->extend({&sequence}, {part(text(), 40, 60)}, Engine::Rows::kAll).front();
    EXPECT_TRUE(tensors_close(after, expected.slice(0, 40, 60), kRounding)) << policy;
  }
}

std::int64_t formula(const Engine& engine, const Sequence& sequence) {
  std::int64_t bytes = 0;
  for (const KeptLayer& layer : sequence.cache().all_kept()) {
    bytes += kept_layer_bytes(engine.plan(), engine.policy(), layer.rows.tokens(),
                              engine.kv_dtype(), engine.pool().page_tokens());
  }
  return bytes;
}

TEST(TokenPolicy, BytesAreTheFormulasAndTheForecasts) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.head_dim = 16};
  for (const char* dtype : {"float32", "bfloat16", "int8", "int4", "int2"}) {
    for (const char* policy : kSmall) {
      SCOPED_TRACE(std::string(policy) + " " + dtype);
      EngineOptions options = under(policy, dtype);
      options.policy.budget.tokens *= dtype[0] == 'i' ? 12 : 1;
      if (options.policy.kind == TokenPolicyKind::kStreamingLlm) {
        options.policy.window_tokens *= dtype[0] == 'i' ? 15 : 1;  // codes until tokens leave
      }
      const auto engine = testing::load_plain(model, options);
      CacheForecast forecast(engine->plan(), engine->kv_dtype(), engine->pool().page_tokens(),
                             MergeSpread::kNone, engine->policy());
      Sequence sequence = engine->new_sequence();
      const Row ids = random_ids(1, 250, 96, 3).front();
      engine->prefill({&sequence}, {part(ids, 0, 210)}, Engine::Rows::kLast);
      EXPECT_LE(engine->pool().peak_bytes(), forecast.read(210));
      for (std::size_t i = 210; i < 250; ++i) {
        ASSERT_EQ(engine->pool().allocated_bytes(), formula(*engine, sequence)) << i;
        ASSERT_EQ(engine->pool().allocated_bytes(), forecast.bytes()) << i;
        ASSERT_EQ(sequence.cache().bytes().kept, forecast.bytes());
        engine->extend({&sequence}, {{ids[i]}}, Engine::Rows::kLast);
        forecast.extend(1);
      }
    }
  }
}

// The text decides which of the kept tokens are latents, so forecasts are bounds. Pages that few tokens begin count.
TEST(TokenPolicy, LatentsTakeNoMoreThanTheForecast) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.head_dim = 16};
  KvPlan plans[] = {testing::principal_plan(model, 2, LatentBasis::kCalibrated, false, 2, 2),
                    testing::grouped_plan(model, 2, 8, testing::small_policy(MergeRule::kLs)),
                    testing::grouped_plan(model, 2, 8, testing::small_policy(MergeRule::kNone))};
  const Row ids = random_ids(1, 250, 96, 3).front();
  for (KvPlan& plan : plans) {
    plan.compression.window_tokens = 64;  // more exact tokens than some policies keep
    plan.compression.block_tokens = 64;
    for (const char* dtype : {"float32", "int4"}) {
      for (const std::int64_t page : {32, 64}) {
        for (const char* policy :
             {"h2o:budget=30", "h2o:budget=100", "snapkv:budget=70,window=16"}) {
          SCOPED_TRACE(fmt::format("{} {} pages of {} rule {}", policy, dtype, page,
                                   static_cast<int>(plan.compression.rule)));
          EngineOptions options = under(policy, dtype);
          options.page_tokens = page;
          const auto engine = testing::load(model, plan, options);
          CacheForecast forecast(engine->plan(), engine->kv_dtype(), page, MergeSpread::kNone,
                                 engine->policy());
          Sequence sequence = engine->new_sequence();
          engine->prefill({&sequence}, {part(ids, 0, 210)}, Engine::Rows::kLast);
          EXPECT_LE(engine->pool().peak_bytes(), forecast.read(210));
          for (std::size_t i = 210; i < 250; ++i) {
            ASSERT_LE(engine->pool().allocated_bytes(), forecast.bytes()) << i;
            engine->extend({&sequence}, {{ids[i]}}, Engine::Rows::kLast);
            forecast.extend(1);
          }
        }
      }
    }
  }
}

TEST(TokenPolicy, RunningPoliciesNeverGrow) {
  const testing::OneThread one;
  const auto engine = testing::load_plain({}, under("zeromerge:budget=20"));
  Sequence sequence = engine->new_sequence();
  engine->prefill({&sequence}, {part(text(), 0, 40)}, Engine::Rows::kLast);
  const std::int64_t bytes = engine->pool().allocated_bytes();
  const Row ids = random_ids(1, 100, 96, 3).front();
  for (const std::int64_t id : ids) {
    engine->extend({&sequence}, {{id}}, Engine::Rows::kLast);
    EXPECT_EQ(engine->pool().allocated_bytes(), bytes);
  }
  EXPECT_EQ(sequence.num_tokens(), 140);
}

// Contexts of codes that change row by row stay near those of numbers.
TEST(TokenPolicy, IntegersKeepWhatNumbersKeep) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.head_dim = 16};
  for (const char* policy :
       {"zeromerge:budget=24,residual=2", "h2o:budget=24", "snapkv:budget=200"}) {
    const at::Tensor exact = two_turns(*testing::load_plain(model, under(policy)), text());
    const auto distance = [&](const char* dtype) {
      const auto engine = testing::load_plain(model, under(policy, dtype));
      // Until rounding makes another choice of tokens.
      return (two_turns(*engine, text()) - exact).slice(0, 40, 60).abs().mean().item<double>();
    };
    EXPECT_LT(distance("float16"), 1e-3) << policy;
    EXPECT_LT(distance("int8"), 0.05) << policy;
    EXPECT_LT(distance("int8"), distance("int4") + 1e-9) << policy;
  }
}

TEST(TokenPolicy, NoResidualSlotsIsPureEviction) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const at::Tensor merged = two_turns(
      *testing::load_plain(model, under("zeromerge:budget=16,residual=0,lambda=1,ring=0.5")),
      text());
  EXPECT_TRUE(
      at::equal(merged, two_turns(*testing::load_plain(model, under("h2o:budget=16")), text())));
}

// Sinks and last tokens as a text of their own, keys and query turned by their places in it (StreamingLLM).
TEST(TokenPolicy, PositionsInTheCacheAreThoseOfAShorterText) {
  const testing::TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory.path(), {.num_layers = 1});
  const Decoder decoder(Checkpoint::open(directory.path()), at::kFloat);
  const ModelConfig& config = decoder.config();
  const TokenPolicy policy = parse_token_policy("streamingllm:sink=2,window=6,pos=cache");
  KeptLayer layer{.rows = {plain_plan(1, config.num_kv_heads, config.head_dim),
                           {.pool = std::make_shared<KvPool>(4)},
                           kept_columns(policy)},
                  .choice = {{.budget = 8}}};
  const std::int64_t num_tokens = 31;
  const at::Tensor all = at::arange(num_tokens, at::kLong);
  const at::Tensor key =
      testing::random_normal({num_tokens, config.num_kv_heads, config.head_dim}, 1);
  const at::Tensor value =
      testing::random_normal({num_tokens, config.num_kv_heads, config.head_dim}, 2);
  const at::Tensor query = testing::random_normal({2, config.num_heads, config.head_dim}, 3);
  const at::Tensor turned = decoder.rope().rotate(0, key, all);
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    layer.rows.append(turned.narrow(0, token, 1), value.narrow(0, token, 1),
                      all.narrow(0, token, 1));
    if (token + 2 < num_tokens) {
      finish_token(policy, {layer.choice, {{&layer.rows}}});
    }
  }
  // The two last tokens were appended without one having left: 2 sinks, 6 tokens, 2 new ones.
  const at::Tensor kept =
      at::cat({at::arange(2, at::kLong), at::arange(num_tokens - 8, num_tokens, at::kLong)});
  const at::Tensor places = at::arange(10, at::kLong);
  const at::Tensor expected =
      causal_attention(decoder.rope().rotate(0, query, places.slice(0, 8)),
                       decoder.rope().rotate(0, key.index_select(0, kept), places),
                       value.index_select(0, kept), attention_rule(config, 0));
  const at::Tensor positions = all.slice(0, num_tokens - 2);
  const at::Tensor at_true = decoder.rope().rotate(0, query, positions);
  EXPECT_TRUE(tensors_close(
      attend_kept(decoder, 0, layer.rows, policy, at_true, positions, nullptr), expected, 1e-4));
  EXPECT_TRUE(tensors_close(attend_kept(decoder, 0, layer.rows, policy, at_true.slice(0, 1),
                                        positions.slice(0, 1), nullptr),
                            expected.slice(0, 1), 1e-4));
}

TEST(TokenPolicy, RefusesWhatItCannotDo) {
  const SyntheticCheckpoint window{.model_type = "mistral", .window = 20};
  const auto refusal = [](const SyntheticCheckpoint& model, const EngineOptions& options) {
    return error_of([&] { testing::load_plain(model, options); });
  };
  EXPECT_THAT(refusal(window, under("h2o")), HasSubstr("layer 0 reads the last 20 tokens"));
}

}  // namespace
}  // namespace kvc::token_policy_test
