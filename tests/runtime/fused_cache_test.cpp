// Fused layers in the runtime, against a forward pass that writes the definition out.
#include <gtest/gtest.h>

#include "runtime/memory/memory_forecast.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/fused_definition.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::cached_logits;
using testing::DefinedAttention;
using testing::fused_upper_plan;
using testing::kRounding;
using testing::part;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
using testing::tensors_identical;

at::Tensor defined_logits(const SyntheticCheckpoint& model, const KvPlan& plan, const Row& ids) {
  const testing::TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory.path(), model);
  const Decoder decoder(Checkpoint::open(directory.path()), at::kFloat);
  DefinedAttention attention(decoder, plan);
  return decoder.logits(decoder.forward(TokenBatch::of({ids}), attention));
}

Row some_ids(std::int64_t count, std::uint64_t seed = 1) {
  return testing::random_ids(1, count, 96, seed).front();
}

struct Case {
  FusionForm form;
  int num_sources;
};
constexpr Case kCases[] = {{FusionForm::kChannel, 1},
                           {FusionForm::kChannel, 2},
                           {FusionForm::kComplex, 1},
                           {FusionForm::kComplex, 2},
                           {FusionForm::kFull, 2}};

TEST(FusedCache, FollowsTheDefinition) {
  const testing::OneThread one;
  const Row ids = some_ids(45);
  for (const SyntheticCheckpoint& model :
       {SyntheticCheckpoint{}, SyntheticCheckpoint{.model_type = "qwen3", .num_layers = 5},
        SyntheticCheckpoint{.model_type = "mistral", .window = 9}}) {
    for (const auto& [form, num_sources] : kCases) {
      const KvPlan plan = fused_upper_plan(model, form, num_sources);
      const at::Tensor expected = defined_logits(model, plan, ids);
      EngineOptions pieces = testing::pages_of(4);
      pieces.prefill_chunk = 7;
      for (const EngineOptions& options : {EngineOptions{}, pieces}) {
        const auto engine = testing::load(model, plan, options);
        for (const auto& [prefill, chunk] :
             {std::pair(45, 1), std::pair(30, 1), std::pair(30, 4), std::pair(1, 1)}) {
          EXPECT_TRUE(tensors_close(cached_logits(*engine, ids, static_cast<std::size_t>(prefill),
                                                  static_cast<std::size_t>(chunk)),
                                    expected, kRounding))
              << model.model_type << ", " << to_string(form) << " of " << num_sources
              << " sources, prompt of " << prefill << ", then " << chunk << " at a time";
        }
      }
    }
  }
}

// A second prompt sees the first one.
TEST(FusedCache, LaterTurnsSeeEarlierOnes) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const Row ids = some_ids(40);
  const KvPlan plan = fused_upper_plan(model, FusionForm::kChannel, 2);
  const auto engine = testing::load(model, plan);
  Sequence sequence = engine->new_sequence();
  engine->prefill({&sequence}, {part(ids, 0, 22)}, Engine::Rows::kLast);
  const at::Tensor later =
      engine->prefill({&sequence}, {part(ids, 22, 40)}, Engine::Rows::kAll).front();
  EXPECT_TRUE(tensors_close(later, defined_logits(model, plan, ids).slice(0, 22), kRounding));
}

TEST(FusedCache, FusedLayersStoreNothing) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.num_layers = 6};
  const KvPlan plan = fused_upper_plan(model, FusionForm::kChannel, 2);
  for (const char* dtype : {"float32", "bfloat16", "int8", "int4", "int2"}) {
    EngineOptions options = testing::cache_of(dtype);
    options.page_tokens = 32;
    const auto engine = testing::load(model, plan, options);
    const auto plain = testing::load_plain(model, options);
    Sequence sequence = engine->new_sequence(), original = plain->new_sequence();
    CacheForecast forecast(plan, engine->kv_dtype(), 32);
    const Row ids = some_ids(230);
    engine->prefill({&sequence}, {part(ids, 0, 200)}, Engine::Rows::kLast);
    plain->prefill({&original}, {part(ids, 0, 200)}, Engine::Rows::kLast);
    forecast.read(200);
    for (std::size_t i = 200; i < ids.size(); ++i) {
      engine->extend({&sequence}, {{ids[i]}}, Engine::Rows::kLast);
      plain->extend({&original}, {{ids[i]}}, Engine::Rows::kLast);
      forecast.extend(1);
      EXPECT_EQ(forecast.bytes(), sequence.cache().allocated_bytes());
      EXPECT_EQ(2 * sequence.cache().allocated_bytes(), original.cache().allocated_bytes());
    }
    testing::expect_exact_bytes(*engine, sequence);
  }
}

TEST(FusedCache, ProjectionsLeaveTheWeights) {
  const SyntheticCheckpoint model;
  const KvPlan plan = fused_upper_plan(model, FusionForm::kChannel, 2);
  const std::int64_t kv_dim = model.num_kv_heads * model.head_dim;
  const std::int64_t projections = 2 * 2 * kv_dim * model.hidden_size * 4;  // two layers
  const std::int64_t vectors = 2 * 2 * 2 * kv_dim * 4;
  EXPECT_EQ(testing::load_plain(model)->weight_bytes() - testing::load(model, plan)->weight_bytes(),
            projections - vectors);
}

// Codes are keys before RoPE: the kernel's fold of one query reads what several queries' rows are made from.
TEST(FusedCache, ReadsCodesAsItReadsNumbers) {
  const testing::OneThread one;
  const SyntheticCheckpoint model{.head_dim = 16};
  const Row ids = some_ids(230);
  for (const auto& [form, num_sources] : kCases) {
    const KvPlan plan = fused_upper_plan(model, form, num_sources);
    const at::Tensor exact = defined_logits(model, plan, ids).slice(0, 200);
    for (const char* dtype : {"bfloat16", "int8"}) {
      EngineOptions options = testing::cache_of(dtype);
      options.page_tokens = 32;
      const auto engine = testing::load(model, plan, options);
      const auto rest = [&](std::size_t chunk) {
        return cached_logits(*engine, ids, 200, chunk).slice(0, 200);
      };
      const at::Tensor folded = rest(1);
      EXPECT_TRUE(tensors_close(folded, rest(5), 2 * kRounding)) << dtype << to_string(form);
      EXPECT_TRUE(tensors_close(folded, exact, 0.05 * testing::spread(exact)))
          << dtype << to_string(form);
    }
  }
}

TEST(FusedCache, SequencesOfABatchAreThoseAlone) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const KvPlan plan = fused_upper_plan(model, FusionForm::kChannel, 2);
  const auto engine = testing::load(model, plan);
  const Row a = some_ids(20, 2), b = some_ids(33, 3);
  Sequence first = engine->new_sequence(), second = engine->new_sequence();
  std::vector<at::Tensor> logits =
      engine->prefill({&first, &second}, {part(a, 0, 15), part(b, 0, 28)}, Engine::Rows::kAll);
  const auto more =
      engine->extend({&first, &second}, {part(a, 15, 20), part(b, 28, 33)}, Engine::Rows::kAll);
  EXPECT_TRUE(
      tensors_close(at::cat({logits[0], more[0]}), defined_logits(model, plan, a), kRounding));
  EXPECT_TRUE(
      tensors_close(at::cat({logits[1], more[1]}), defined_logits(model, plan, b), kRounding));
}

TEST(FusedCache, ForksGoTheirOwnWay) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const KvPlan plan = fused_upper_plan(model, FusionForm::kComplex, 2);
  const auto engine = testing::load(model, plan);
  const Row left = some_ids(30, 4);
  Row right = left;
  right.back() = (right.back() + 1) % 96;
  Sequence first = engine->new_sequence();
  engine->prefill({&first}, {part(left, 0, 20)}, Engine::Rows::kLast);
  Sequence second = first.fork();
  const auto of = [&](Sequence& sequence, const Row& ids) {
    return engine->extend({&sequence}, {part(ids, 20, 30)}, Engine::Rows::kAll).front();
  };
  EXPECT_TRUE(
      tensors_close(of(first, left), defined_logits(model, plan, left).slice(0, 20), kRounding));
  EXPECT_TRUE(
      tensors_close(of(second, right), defined_logits(model, plan, right).slice(0, 20), kRounding));
}

// A head map that names every head's own number changes nothing, though it is read another way.
TEST(FusedCache, HeadsOfTheirOwnNumberNeedNoMap) {
  const testing::OneThread one;
  const SyntheticCheckpoint model;
  const Row ids = some_ids(24);
  KvPlan plan = fused_upper_plan(model, FusionForm::kChannel, 2);
  const at::Tensor expected = cached_logits(*testing::load(model, plan), ids, 12, 1);
  for (FusedLayer& layer : plan.fused) {
    layer.key_heads = layer.value_heads = {0, 1, 0, 1};
  }
  EXPECT_TRUE(
      tensors_close(cached_logits(*testing::load(model, plan), ids, 12, 1), expected, kRounding));
  plan.fused[0].value_heads = {1, 0, 1, 0};
  EXPECT_FALSE(
      tensors_close(cached_logits(*testing::load(model, plan), ids, 12, 1), expected, kRounding));
}

}  // namespace
}  // namespace kvc
