// Engines whose keys lose channels (ThinK).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/token_policy.h"
#include "runtime/attention/pruned_attention.h"
#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/policy_turns.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::think_test {
namespace {

using testing::cached_logits;
using ::testing::HasSubstr;
using testing::kRounding;
using testing::part;
using testing::random_ids;
using testing::random_normal;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
using ::testing::ThrowsMessage;
using testing::two_turns;
using testing::under;

constexpr const char* kPolicies[] = {"think:window=5", "think:share=0.9,window=1"};

const Row& text() {
  static const Row kIds = random_ids(1, 130, 96, 1).front();
  return kIds;
}

// Two prompts, tokens after each.
at::Tensor two_prompts(const Engine& engine, Sequence& sequence) {
  return two_turns(engine, text(), sequence);
}
at::Tensor two_prompts(const EngineOptions& options, const SyntheticCheckpoint& model = {}) {
  const auto engine = testing::load_plain(model, options);
  Sequence sequence = engine->new_sequence();
  return two_prompts(*engine, sequence);
}

// Energies of channels: queries of two heads of one KV head 1+4, 1+0, 9+0, 0+0; keys 1, 9, 1, 100.
TEST(Think, ScoresChannelsByQueriesAndKeys) {
  const at::Tensor query = at::tensor({1.0f, 1.0f, 3.0f, 0.0f, 2.0f, 0.0f, 0.0f, 0.0f});
  const at::Tensor key = at::tensor({0.0f, 3.0f, 0.0f, 6.0f, 1.0f, 0.0f, 1.0f, 8.0f});
  const auto chosen = [&](std::int64_t kept) {
    return important_channels(query.view({1, 2, 4}), key.view({2, 1, 4}), kept);  // 5 9 9 0
  };
  EXPECT_TRUE(at::equal(chosen(1), at::full({1, 1}, 1, at::kLong)));
  EXPECT_TRUE(at::equal(chosen(3), at::tensor({0, 1, 2}, at::kLong).view({1, 3})));
}

TEST(Think, NoShareIsTheFullCacheToTheBit) {
  const testing::OneThread one;
  for (const char* type : {"llama", "qwen3"}) {
    const SyntheticCheckpoint model{.model_type = type};
    EXPECT_TRUE(at::equal(two_prompts(under("think:share=0,window=3"), model),
                          two_prompts(EngineOptions(), model)));
  }
}

// Keys without their channels are keys with zeros there.
TEST(Think, AttendsToTheChannelsThatStay) {
  const testing::TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory.path(), {.num_layers = 1, .head_dim = 20});
  const Decoder decoder(Checkpoint::open(directory.path()), at::kFloat);
  const ModelConfig& config = decoder.config();
  const std::int64_t num_tokens = 45, pruned = 33, kept = 11;
  const auto rows = [&](int seed) {
    return random_normal({num_tokens, config.num_kv_heads, config.head_dim}, seed);
  };
  const at::Tensor key = rows(1), value = rows(2);
  const at::Tensor query = random_normal({3, config.num_heads, config.head_dim}, 3);
  PrunedStore store(plain_plan(1, config.num_kv_heads, config.head_dim),
                    {.pool = std::make_shared<KvPool>(4)}, kept);
  store.append(key.narrow(0, 0, 40), value.narrow(0, 0, 40));
  const at::Tensor channels = important_channels(query, key, kept);
  store.set_channels(channels);
  EXPECT_TRUE(at::equal(store.channels(), channels));
  store.prune(20);
  store.append(key.slice(0, 40), value.slice(0, 40));
  store.prune(pruned - 20);
  EXPECT_EQ(store.num_pruned(), pruned);
  EXPECT_EQ(store.num_rows(), num_tokens);
  const at::Tensor mask =
      at::zeros({1, config.num_kv_heads, config.head_dim}).scatter_(2, channels.unsqueeze(0), 1.0);
  at::Tensor remaining = key.clone();
  remaining.narrow(0, 0, pruned).mul_(mask);
  const at::Tensor expected = causal_attention(query, remaining, value, attention_rule(config, 0));
  const at::Tensor positions = at::arange(num_tokens - 3, num_tokens, at::kLong);
  EXPECT_TRUE(tensors_close(attend_pruned(decoder, 0, store, query, positions), expected, 1e-5));
  EXPECT_TRUE(
      tensors_close(attend_pruned(decoder, 0, store, query.slice(0, 2), positions.slice(0, 2)),
                    expected.slice(0, 2), 1e-5));
}

TEST(Think, ChangesOnlyWhatFollowsThePrompt) {
  const testing::OneThread one;
  const at::Tensor full = two_prompts(EngineOptions());
  for (const char* policy : kPolicies) {
    const at::Tensor pruned = two_prompts(under(policy));
    EXPECT_TRUE(at::equal(pruned.slice(0, 0, 40), full.slice(0, 0, 40))) << policy;
    EXPECT_FALSE(tensors_close(pruned.slice(0, 40), full.slice(0, 40), 1e-2)) << policy;
  }
}

TEST(Think, PiecesBatchesAndForksDoNotMatter) {
  const testing::OneThread one;
  const Row other = random_ids(1, 77, 96, 2).front();
  for (const char* policy : kPolicies) {
    EngineOptions options = under(policy);
    const at::Tensor alone = two_prompts(options);
    options.prefill_chunk = 3;
    EXPECT_TRUE(tensors_close(two_prompts(options), alone, kRounding)) << policy;
    const auto engine = testing::load_plain({}, options);
    Sequence a = engine->new_sequence(), b = engine->new_sequence();
    engine->prefill({&b, &a}, {other, part(text(), 0, 40)}, Engine::Rows::kLast);
    Sequence fork = a.fork();
    engine->prefill({&fork}, {part(other, 0, 30)}, Engine::Rows::kLast);
    const auto logits =
        engine->extend({&b, &a}, {part(other, 0, 9), part(text(), 40, 60)}, Engine::Rows::kAll);
    EXPECT_TRUE(tensors_close(logits[1], alone.slice(0, 40, 60), kRounding)) << policy;
  }
}

TEST(Think, BytesAreTheFormulasAndTheForecasts) {
  const testing::OneThread one;
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const char* policy : kPolicies) {
      const auto engine = testing::load_plain({.head_dim = 20}, under(policy, dtype));
      const auto formula = [&](std::int64_t rows, std::int64_t pruned) {
        return engine->plan().num_layers() * pruned_layer_bytes(engine->plan(), engine->policy(),
                                                                rows, pruned, engine->kv_dtype(),
                                                                engine->pool().page_tokens());
      };
      CacheForecast forecast(engine->plan(), engine->kv_dtype(), engine->pool().page_tokens(),
                             MergeSpread::kNone, engine->policy());
      Sequence sequence = engine->new_sequence();
      const std::int64_t window = engine->policy().window_tokens;
      engine->prefill({&sequence}, {part(text(), 0, 70)}, Engine::Rows::kLast);
      EXPECT_LE(engine->pool().peak_bytes(), forecast.read(70));
      for (std::size_t i = 70; i < 100; ++i) {
        ASSERT_EQ(engine->pool().allocated_bytes(),
                  formula(static_cast<std::int64_t>(i), 70 - window));
        ASSERT_EQ(engine->pool().allocated_bytes(), forecast.bytes());
        ASSERT_EQ(sequence.cache().bytes().kept, forecast.bytes());
        engine->extend({&sequence}, {{text()[i]}}, Engine::Rows::kLast);
        forecast.extend(1);
      }
      // Generated tokens lose channels when a later prompt has been read.
      engine->prefill({&sequence}, {part(text(), 100, 120)}, Engine::Rows::kLast);
      EXPECT_LE(engine->pool().peak_bytes(), forecast.read(20));
      EXPECT_EQ(engine->pool().allocated_bytes(), formula(120, 120 - window));
      EXPECT_EQ(engine->pool().allocated_bytes(), forecast.bytes());
    }
  }
}

TEST(Think, KeptRatioIsThePapers) {
  const KvPlan plan = plain_plan(1, 8, 128);
  const TokenPolicy policy = parse_token_policy("think:share=0.5");
  const std::int64_t rows = 1000, pruned = pruned_rows_of(policy, plan, rows);
  EXPECT_EQ(pruned, 968);
  const std::int64_t mask = 8 * 128 / 8;
  const double expected =
      0.5 + (0.5 * 968 + 32) / 2000 + static_cast<double>(mask) / (2 * 8 * 128 * 2 * 1000);
  EXPECT_DOUBLE_EQ(
      static_cast<double>(pruned_layer_bytes(plan, policy, rows, pruned, KvDtype::kBFloat16)) /
          static_cast<double>(original_bytes(plan, rows, KvDtype::kBFloat16)),
      expected);
  EXPECT_EQ(kept_channels(parse_token_policy("think"), 128), 77);
  EXPECT_EQ(kept_channels(parse_token_policy("think:share=0.95"), 8), 1);
}

// No prompt has more than the window: nothing goes until a later one has.
TEST(Think, ShortPromptsStayWhole) {
  const testing::OneThread one;
  const auto engine = testing::load_plain({}, under("think:window=50"));
  const auto full = testing::load_plain({});
  Sequence sequence = engine->new_sequence(), exact = full->new_sequence();
  EXPECT_TRUE(at::equal(cached_logits(*engine, part(text(), 0, 60), 40, 1, sequence),
                        cached_logits(*full, part(text(), 0, 60), 40, 1, exact)));
  EXPECT_FALSE(sequence.cache().pruned_layer(0).store.has_channels());
  engine->prefill({&sequence}, {part(text(), 60, 90)}, Engine::Rows::kLast);
  EXPECT_EQ(sequence.cache().pruned_layer(0).store.num_pruned(), 40);
}

TEST(Think, RefusesIntegerCaches) {
  EXPECT_THAT(([] { testing::load_plain({}, under("think", "int4")); }),
              ThrowsMessage<Error>(HasSubstr("--kv-dtype float16")));
}

}  // namespace
}  // namespace kvc::think_test
