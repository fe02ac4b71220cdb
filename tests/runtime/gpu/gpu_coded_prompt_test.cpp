// Prompts that a GPU reads through codes: logits, codes and the steps behind them are those of the CPU's engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <tuple>

#include "runtime/gpu/coded_prompt_attention.h"
#include "runtime/gpu/gpu_coding.h"
#include "runtime/gpu/gpu_forecast.h"
#include "runtime/gpu/gpu_prompt.h"
#include "runtime/kernels/prompt_attention.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/emulated_executor.h"
#include "tests/runtime/gpu/gpu_fixture.h"
#include "tests/testing/error_of.h"

namespace kvc::gpu_coded_prompt_test {
namespace {

using testing::coded_plan;
using testing::CodedPlanOptions;
using testing::CodedScope;
using testing::expect_gpu_steps;
using testing::GpuCase;
using testing::SyntheticCheckpoint;
using testing::tiny_gpu_model;

// Wide codes: where 16 bits round another way, one that is a step apart changes little.
CodedPlanOptions wide(CodedScope scope, int bases = 0, bool rotated = false) {
  return {.scope = scope,
          .coefficients = {0, 0, 0, 0, 0, 0, 0, 12, 28},
          .gain = true,
          .bases = bases,
          .rotated = rotated,
          .codes_prompts = true};
}

KvPlan plan_of(const SyntheticCheckpoint& model, const CodedPlanOptions& options,
               std::int64_t sinks = 0, std::int64_t window = 0) {
  KvPlan plan = coded_plan(model, options);
  plan.compression.sink_tokens = sinks;
  plan.compression.window_tokens = window;
  plan.check();
  return plan;
}

// Pieces of 12 tokens begin and end within tiles; the further prompt has codes before it.
GpuCase reading(const SyntheticCheckpoint& model, const KvPlan& plan) {
  GpuCase test_case{.model = model, .plan = plan, .prompt = 100, .longest = 104};
  test_case.turn = 45;
  return test_case;
}

struct Reading {
  const char* name;
  CodedPlanOptions options;
  std::int64_t sinks = 0, window = 0;
};
void PrintTo(const Reading& reading, std::ostream* to) { *to << reading.name; }

class GpuCodedPrompts : public ::testing::TestWithParam<std::tuple<Reading, const char*>> {};

TEST_P(GpuCodedPrompts, AreTheEngines) {
  const auto& [reads, model_type] = GetParam();
  SyntheticCheckpoint model = tiny_gpu_model(model_type);
  model.window = 50;
  expect_gpu_steps(reading(model, plan_of(model, reads.options, reads.sinks, reads.window)));
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuCodedPrompts,
    ::testing::Combine(
        ::testing::Values(Reading{"full, head", wide(CodedScope::kHead)},
                          Reading{"full, layer, sinks", wide(CodedScope::kLayer), 3},
                          Reading{"full, head, window", wide(CodedScope::kHead), 0, 32},
                          Reading{"rotated, head", wide(CodedScope::kHead, 16, true)},
                          Reading{"pairs, layer, window", wide(CodedScope::kLayer, 16), 0, 64},
                          Reading{"keys, layer", wide(CodedScope::kLayer, 1)},
                          Reading{"group", wide(CodedScope::kGroup)},
                          Reading{"odd window", wide(CodedScope::kHead), 2, 7}),
        ::testing::Values("qwen3", "gemma2")));

// The first tile becomes codes while tokens are generated.
TEST(GpuCodedPrompts, MayBeShorterThanATile) {
  for (const char* model_type : {"llama", "mistral"}) {
    SyntheticCheckpoint model = tiny_gpu_model(model_type);
    model.window = 33;
    GpuCase test_case{.model = model, .plan = plan_of(model, wide(CodedScope::kHead, 16, true))};
    test_case.turn = 26;
    expect_gpu_steps(test_case);
  }
}

TEST(GpuCodedPrompts, ReadIntegersBesideCodes) {
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  KvPlan plan = coded_plan(model, wide(CodedScope::kLayer));
  plan.layers.front() = KvSource::kPlain;
  plan.coded.erase(plan.coded.begin());
  for (const KvDtype dtype : {KvDtype::kFloat16, KvDtype::kInt8}) {
    GpuCase test_case = reading(model, plan);
    test_case.kv_dtype = dtype;
    expect_gpu_steps(test_case);
  }
}

TEST(GpuCodedPrompts, GenerateTheEnginesTokens) {
  const testing::OneThread one_thread;
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  for (const CodedScope scope : {CodedScope::kHead, CodedScope::kGroup}) {
    const testing::TemporaryDirectory directory;
    write_factored_checkpoint(directory.path(), model, plan_of(model, wide(scope)));
    GenerateOptions options;
    options.max_new_tokens = 7;
    options.num_samples = 2;
    const GpuEngine engine = testing::emulated_engine(directory.path());
    const auto [expected, result] = testing::expect_same_tokens(
        directory.path(), engine, {testing::gpu_text(90, 1), testing::gpu_text(30, 5)}, options);
    EXPECT_EQ(result.sequences[0].bytes.coded, expected.sequences[0].bytes.coded);
    EXPECT_LE(engine.kv_peak_bytes(),
              gpu_cache_bytes(engine.plan(), KvDtype::kFloat16, 32, {90, 90, 30, 30}, 7));
  }
}

// All layers' codes lie beside all exact rows before the prompt ends.
TEST(GpuCodedPrompts, TakeWhatIsForecast) {
  SyntheticCheckpoint model = tiny_gpu_model("llama");
  model.num_layers = 6;
  const testing::TemporaryDirectory directory;
  write_factored_checkpoint(directory.path(), model, plan_of(model, wide(CodedScope::kHead)));
  const GpuEngine engine = testing::emulated_engine(directory.path());
  engine.generate({testing::gpu_text(300, 1)}, testing::options_of(3));
  const std::int64_t forecast = gpu_cache_bytes(engine.plan(), KvDtype::kFloat16, 32, {300}, 3);
  EXPECT_LE(engine.kv_peak_bytes(), forecast);
  EXPECT_GT(engine.kv_peak_bytes(), forecast * 9 / 10);
}

TEST(GpuCodedPrompts, CopiesHaveTheFirstToken) {
  const testing::OneThread one_thread;
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  const KvPlan plan = plan_of(model, wide(CodedScope::kHead));
  const testing::TemporaryDirectory directory;
  write_factored_checkpoint(directory.path(), model, plan);
  testing::EmulatedExecutor executor;
  const GpuModel on_gpu = load_gpu_model(Checkpoint::open(directory.path()), plan, at::kHalf,
                                         WeightType::kFloat, at::kCPU, executor.free_bytes());
  GpuCache cache(plan, at::kHalf, KvDtype::kFloat16, at::kCPU, 32, {50, 50});
  read_gpu_prompt(on_gpu, cache, 0, testing::gpu_text(40, 3), {}, executor);
  code_gpu_prompt(on_gpu, cache, 0, executor);
  cache.copy(0, 1, 40);
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    for (const DeviceRows& rows :
         {cache.tiles_of(layer).first_keys(0), cache.tiles_of(layer).first_values(0)}) {
      const auto numbers = [&](int sequence) {
        return at::from_blob(const_cast<void*>(rows.blocks[sequence]), {rows.width}, at::kHalf);
      };
      EXPECT_TRUE(at::equal(numbers(0), numbers(1)));
      EXPECT_GT(numbers(0).abs().max().item<float>(), 0.1f);
    }
  }
}

TEST(GpuCodedPrompts, OtherLayersAreRefused) {
  SyntheticCheckpoint model = tiny_gpu_model("llama");
  model.num_layers = 4;
  KvPlan plan = plan_of(model, wide(CodedScope::kHead));
  plan.layers = {KvSource::kPlain, KvSource::kPlain, KvSource::kCoded, KvSource::kFused};
  std::erase_if(plan.coded, [](const CodedBlock& block) { return block.first_layer != 2; });
  plan.fused = testing::fused_upper_plan(model, FusionForm::kChannel, 1).fused;
  std::erase_if(plan.fused, [](const FusedLayer& layer) { return layer.layer != 3; });
  const testing::TemporaryDirectory directory;
  write_factored_checkpoint(directory.path(), model, plan);
  EXPECT_THAT(error_of([&] { testing::emulated_engine(directory.path()); }),
              ::testing::HasSubstr("neither coded nor plain"));
}

// What runtime/kernels/prompt_attention.h says, with rows that are not near each other.
TEST(CodedPromptAttention, IsTheKernels) {
  constexpr std::int64_t kHeads = 6, kKvHeads = 2, kDim = 32, kTokens = 420;
  at::manual_seed(5);
  const at::Tensor query = at::randn({kTokens, kHeads, kDim}),
                   key = at::randn({kTokens, kKvHeads, kDim}), value = at::randn_like(key),
                   coded_key = at::randn_like(key), coded_value = at::randn_like(key);
  for (const std::int64_t first : {0, 17, 64, 300}) {
    for (const std::int64_t window : {0, 40, 333}) {
      for (const ExactTiles& tiles : {ExactTiles{1, 0}, ExactTiles{3, 0}, ExactTiles{2, 5}}) {
        for (const double softcap : {0.0, 3.0}) {
          AttentionRule rule{.scale = 0.3, .softcap = softcap};
          if (window > 0) {
            rule.window = window;
          }
          const std::int64_t exact = tiles.start(first), coded = tiles.start(kTokens - 1);
          CodedPromptAttention attention(tiles);
          const at::Tensor found = attention.attend(
              query.slice(0, first), {coded_key.slice(0, 0, coded), coded_value.slice(0, 0, coded)},
              {key.slice(0, exact), value.slice(0, exact), exact}, rule);
          at::Tensor expected = at::empty({kTokens - first, kHeads, kDim});
          const auto rows = [](const at::Tensor& x, std::int64_t begin) {
            return TokenRows{.data = x.data_ptr(),
                             .token_stride = x.stride(0),
                             .head_stride = x.stride(1),
                             .first = begin,
                             .last = begin + x.size(0)};
          };
          const PromptAttention params{.query = rows(query.slice(0, first), first),
                                       .output = rows(expected, first),
                                       .coded_key = rows(coded_key, 0),
                                       .coded_value = rows(coded_value, 0),
                                       .exact_key = rows(key, 0),
                                       .exact_value = rows(value, 0),
                                       .num_heads = kHeads,
                                       .num_kv_heads = kKvHeads,
                                       .head_dim = kDim,
                                       .scale = 0.3f,
                                       .softcap = static_cast<float>(softcap),
                                       .window = window,
                                       .exact_tiles = tiles.tiles,
                                       .sinks = tiles.sinks};
          prompt_attention_reference(params, 0, prompt_pieces(params));
          EXPECT_TRUE(at::allclose(found, expected.flatten(1), 1e-4, 1e-5))
              << "from " << first << ", window " << window << ", " << tiles.tiles << " tiles";
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvc::gpu_coded_prompt_test
