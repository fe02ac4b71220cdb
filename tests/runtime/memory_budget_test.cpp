// A limit on KV memory: what is rebuilt in the room that is left changes speed, not results; what is
// forecast is what is taken.
#include "runtime/memory/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"
#include "tests/testing/zoo.h"

namespace kvc::memory_budget_test {
namespace {

using testing::cached_logits;
using testing::grouped_plan;
using ::testing::HasSubstr;
using testing::kRounding;
using testing::random_ids;
using testing::Row;
using testing::small_policy;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

constexpr std::int64_t kTokens = 150, kPrompt = 100;

EngineOptions limited(std::int64_t bytes) {
  EngineOptions options = testing::pages_of(4);
  options.memory_bytes = bytes;
  return options;
}

std::int64_t bound_of_prompt(const KvPlan& plan, std::int64_t tokens) {
  return CacheForecast(plan, KvDtype::kFloat32, 4, MergeSpread::kNone).read(tokens);
}

struct Budgeted {
  at::Tensor logits;
  KvBytes bytes;
  std::int64_t peak = 0;
};

Budgeted run(const SyntheticCheckpoint& model, const KvPlan& plan, const EngineOptions& options,
             std::size_t chunk) {
  const auto engine = testing::load(model, plan, options);
  const Row ids = random_ids(1, kTokens, model.vocab_size, 5).front();
  Sequence sequence = engine->new_sequence();
  Budgeted result;
  result.logits = cached_logits(*engine, ids, kPrompt, chunk, sequence);
  result.bytes = sequence.cache().bytes();
  result.peak = engine->pool().peak_bytes();
  EXPECT_EQ(result.bytes.total(), engine->pool().allocated_bytes());
  return result;
}

// From what is just enough to more than everything: the same logits, within the limit, ever more of it
// used.
void expect_elastic(const SyntheticCheckpoint& model, const KvPlan& plan) {
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}}) {
    const Budgeted tight = run(model, plan, testing::pages_of(4), chunk);
    EXPECT_EQ(tight.bytes.expanded, 0);
    std::int64_t before = 0;
    for (const double share : {1.15, 1.3, 1.6, 4.0}) {
      const auto limit = static_cast<std::int64_t>(share * static_cast<double>(tight.peak));
      const Budgeted found = run(model, plan, limited(limit), chunk);
      EXPECT_TRUE(tensors_close(found.logits, tight.logits, kRounding)) << share;
      EXPECT_LE(found.peak, limit);
      EXPECT_GE(found.bytes.expanded, before);
      before = found.bytes.expanded;
    }
    EXPECT_GT(before, 0);
  }
}

TEST(MemoryBudget, ChangesNoLogitsOfMergedGroups) {
  const SyntheticCheckpoint model{.model_type = "llama"};
  for (const MergeRule rule : {MergeRule::kLs, MergeRule::kMean}) {
    expect_elastic(model, grouped_plan(model, 2, 8, small_policy(rule)));
  }
}

TEST(MemoryBudget, ChangesNoLogitsWithKeyNormsAndBiases) {
  expect_elastic({.model_type = "qwen3"},
                 grouped_plan({.model_type = "qwen3"}, 2, 8, small_policy(MergeRule::kLs)));
  expect_elastic({.model_type = "qwen2"},
                 grouped_plan({.model_type = "qwen2"}, 2, 8, small_policy(MergeRule::kLs)));
}

TEST(MemoryBudget, ChangesNoLogitsOfALatentPerLayer) {
  const SyntheticCheckpoint model{.model_type = "llama"};
  CompressionSettings policy = small_policy(MergeRule::kNone);
  policy.unmerged = UnmergedForm::kLatent;
  expect_elastic(model, grouped_plan(model, 2, 8, policy));
  expect_elastic(model, testing::split_plan(model, 4, 4));
}

TEST(MemoryBudget, RefusesWhatCannotFitAndLeavesTheCacheAsItWas) {
  const SyntheticCheckpoint model{.model_type = "llama"};
  const KvPlan plan = grouped_plan(model, 2, 8, small_policy(MergeRule::kLs));
  const std::int64_t most = bound_of_prompt(plan, 60);
  const auto engine = testing::load(model, plan, limited(most));
  const Row ids = random_ids(1, kTokens, model.vocab_size, 6).front();
  Sequence sequence = engine->new_sequence();
  engine->prefill({&sequence}, {testing::part(ids, 0, 60)}, Engine::Rows::kLast);
  EXPECT_THAT(error_of([&] {
                engine->prefill({&sequence}, {testing::part(ids, 60, 150)}, Engine::Rows::kLast);
              }),
              ::testing::AllOf(HasSubstr("--memory"), HasSubstr("90 more tokens")));
  EXPECT_EQ(sequence.num_tokens(), 60);
  EXPECT_EQ(engine->pool().allocated_bytes(), sequence.cache().allocated_bytes());
  const at::Tensor logits =
      engine->extend({&sequence}, {testing::part(ids, 60, 62)}, Engine::Rows::kLast).front();
  EXPECT_TRUE(at::isfinite(logits).all().item<bool>());
}

TEST(MemoryBudget, SharesTheRoomAmongSequences) {
  const SyntheticCheckpoint model{.model_type = "llama"};
  const KvPlan plan = grouped_plan(model, 2, 8, small_policy(MergeRule::kLs));
  const std::int64_t most = bound_of_prompt(plan, 80);
  const auto engine = testing::load(model, plan, limited(4 * most));
  const auto ids = random_ids(3, 80, model.vocab_size, 7);
  std::vector<Sequence> sequences;
  for (const Row& row : ids) {
    sequences.push_back(engine->new_sequence());
    engine->prefill({&sequences.back()}, {row}, Engine::Rows::kLast);
    EXPECT_LE(engine->pool().peak_bytes(), 4 * most);
  }
  EXPECT_GT(sequences.front().cache().bytes().expanded, 0);
  sequences.clear();
  EXPECT_EQ(engine->pool().allocated_bytes(), 0);
}

// From a prompt on, `forks` continuations, which share its blocks until they write. False: refused for want of memory.
bool continues(const Engine& engine, std::int64_t vocab_size, std::size_t forks) {
  const auto ids = random_ids(static_cast<std::int64_t>(forks) + 1, 77, vocab_size, 9);
  std::vector<Sequence> sequences;
  std::vector<Sequence*> pointers;
  sequences.push_back(engine.new_sequence());
  try {
    engine.prefill({&sequences.front()}, {ids.front()}, Engine::Rows::kLast);
    while (sequences.size() < forks) {
      sequences.push_back(sequences.front().fork());
    }
    for (Sequence& sequence : sequences) {
      pointers.push_back(&sequence);
    }
    for (std::size_t step = 0; step < 8; ++step) {
      Engine::Ids tokens;
      for (std::size_t i = 1; i <= forks; ++i) {
        tokens.push_back({ids[i][step]});
      }
      engine.extend(pointers, tokens, Engine::Rows::kLast);
    }
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--memory"));
    return false;
  }
  return true;
}

TEST(MemoryBudget, CountsTheCopiesOfBlocksThatForksShare) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.model_type = "llama"};
  constexpr std::size_t kForks = 6;
  const KvPlan plain =
      plain_plan(static_cast<int>(model.num_layers), model.num_kv_heads, model.head_dim);
  for (const auto& [plan, policy, dtype] :
       {std::tuple(plain, "full", "float32"),
        {plain, "full", "int8"},
        {plain, "h2o:budget=40", "float32"},
        {plain, "snapkv:budget=40", "float32"},
        {grouped_plan(model, 2, 8, small_policy(MergeRule::kLs)), "full", "float32"},
        {testing::split_plan(model, 4, 4), "full", "float32"},
        {testing::split_plan(model, 4, 4), "full", "int8"}}) {
    EngineOptions options = testing::cache_of(dtype);
    options.page_tokens = 32;
    options.policy = parse_token_policy(policy);
    const auto unlimited = testing::load(model, plan, options);
    ASSERT_TRUE(continues(*unlimited, model.vocab_size, kForks));
    const std::int64_t peak = unlimited->pool().peak_bytes();
    const auto single = testing::load(model, plan, options);
    ASSERT_TRUE(continues(*single, model.vocab_size, 1));
    int refused = 0;
    for (int eighths = 2; eighths <= 16; ++eighths) {
      options.memory_bytes = peak * eighths / 8;
      const auto engine = testing::load(model, plan, options);
      refused += continues(*engine, model.vocab_size, kForks) ? 0 : 1;
      EXPECT_LE(engine->pool().peak_bytes(), options.memory_bytes) << policy << ' ' << dtype;
    }
    EXPECT_GE(refused, 6) << policy << ' ' << dtype;   // what is less than the peak
    EXPECT_LT(refused, 15) << policy << ' ' << dtype;  // twice the peak is enough
    // As caches of their own fit, forks do.
    options.memory_bytes = static_cast<std::int64_t>(kForks) * single->pool().peak_bytes();
    EXPECT_TRUE(continues(*testing::load(model, plan, options), model.vocab_size, kForks));
  }
}

// What is cached stays where the whole text, which longrope's long factors read again, does not fit.
TEST(MemoryBudget, KeepsATextThatOutgrowsLongropeIfThereIsNoRoom) {
  const testing::ZooCase zoo_case = testing::load_zoo_case("phi3_longrope_crossing");
  EngineOptions options = testing::cache_of("float32");
  options.page_tokens = 4;
  const auto load = [&] { return Engine::load(zoo_case.directory, options); };
  const Row ids = random_ids(1, 40, 100, 3).front();
  const auto outgrow = [&](const Engine& engine, bool as_prompt, Sequence& sequence) {
    engine.prefill({&sequence}, {testing::part(ids, 0, 36)}, Engine::Rows::kLast);
    const Engine::Ids rest{testing::part(ids, 36, 40)};
    as_prompt ? engine.prefill({&sequence}, rest, Engine::Rows::kLast)
              : engine.extend({&sequence}, rest, Engine::Rows::kLast);
  };
  const Engine unlimited = load();
  Sequence whole = unlimited.new_sequence();
  outgrow(unlimited, false, whole);
  const std::int64_t bytes = whole.cache().allocated_bytes();
  for (const bool as_prompt : {false, true}) {
    options.memory_bytes = bytes - 1;
    const Engine tight = load();
    Sequence sequence = tight.new_sequence();
    EXPECT_THROW(outgrow(tight, as_prompt, sequence), Error);
    EXPECT_EQ(sequence.num_tokens(), 36);
    EXPECT_EQ(sequence.cache().ids(), testing::part(ids, 0, 36));
    options.memory_bytes = bytes;
    const Engine enough = load();
    Sequence longer = enough.new_sequence();
    outgrow(enough, as_prompt, longer);
    EXPECT_EQ(longer.num_tokens(), 40);
    EXPECT_LE(enough.pool().peak_bytes(), bytes);
  }
}

// For prompts and of tokens one by one, for numbers and integers, with latents and without.
TEST(MemoryForecast, IsWhatIsTaken) {
  const SyntheticCheckpoint model{.model_type = "llama"};
  CompressionSettings policy = small_policy(MergeRule::kLs);
  policy.window_tokens = 40;
  const std::vector<KvPlan> plans = {
      plain_plan(static_cast<int>(model.num_layers), model.num_kv_heads, model.head_dim),
      grouped_plan(model, 2, 8, policy), testing::split_plan(model, 4, 4)};
  for (const KvPlan& plan : plans) {
    for (const auto& [name, dtype] : {std::pair("float32", KvDtype::kFloat32),
                                      {"bfloat16", KvDtype::kBFloat16},
                                      {"int8", KvDtype::kInt8}}) {
      EngineOptions options = testing::cache_of(name);
      options.page_tokens = 32;
      const auto engine = testing::load(model, plan, options);
      const Row ids = random_ids(1, 400, model.vocab_size, 8).front();
      CacheForecast forecast(plan, dtype, 32);
      Sequence sequence = engine->new_sequence();
      engine->prefill({&sequence}, {testing::part(ids, 0, 300)}, Engine::Rows::kLast);
      // Merged tokens spread unevenly over groups, which changes how many pages are full.
      const std::int64_t page =
          32 * 2 * plan.kv_dim() * plan.num_layers() * bytes_per_element(dtype);
      const auto near = [page](std::int64_t bytes) {
        const double slack = 0.02 * static_cast<double>(bytes) + static_cast<double>(page);
        return ::testing::DoubleNear(static_cast<double>(bytes), slack);
      };
      EXPECT_THAT(static_cast<double>(forecast.read(300)), near(engine->pool().peak_bytes()))
          << plan.method << " " << name;
      EXPECT_THAT(static_cast<double>(forecast.bytes()), near(engine->pool().allocated_bytes()))
          << plan.method << " " << name << " codes " << quantised_tokens(plan, 300, dtype);
      engine->extend({&sequence}, {testing::part(ids, 300, 400)}, Engine::Rows::kLast);
      forecast.extend(100);
      EXPECT_THAT(static_cast<double>(forecast.bytes()), near(engine->pool().allocated_bytes()))
          << plan.method << " " << name;
    }
  }
}

TEST(ParseBytes, KnowsUnits) {
  EXPECT_EQ(parse_bytes("--memory", "1000000"), 1000000);
  EXPECT_EQ(parse_bytes("--memory", "2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_bytes("--memory", "1.5 MiB"), 3 << 19);
  EXPECT_EQ(parse_bytes("--memory", "3kB"), 3000);
  for (const char* text : {"", "GiB", "-1", "0", "2XB", "1e300", "nan", "2GiB!"}) {
    EXPECT_THROW(parse_bytes("--memory", text), Error) << text;
  }
}

}  // namespace
}  // namespace kvc::memory_budget_test
