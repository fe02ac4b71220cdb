// Plans whose layers are of several kinds: each is executed as its own.
#include <gtest/gtest.h>

#include "runtime/gpu/gpu_engine.h"
#include "runtime/gpu/gpu_forecast.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/gpu_fixture.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

using testing::CodedScope;
using testing::expect_gpu_steps;
using testing::SyntheticCheckpoint;
using testing::tiny_gpu_model;

SyntheticCheckpoint model_of_every_kind(const std::string& model_type) {
  SyntheticCheckpoint model = tiny_gpu_model(model_type);
  model.num_layers = 6;
  return model;
}

// Layer 0 is plain, 1 and 2 are a group of latents, 3 and 5 are coded head by head and as a whole, 4 is fused from 0.
KvPlan plan_of_every_kind(const SyntheticCheckpoint& model, KvPlan latent) {
  KvPlan plan = std::move(latent);
  LatentGroup group = plan.groups.front();
  group.first_layer = 1;
  plan.groups = {group};
  const auto blocks = [&](CodedScope scope, int layer) {
    for (const CodedBlock& block :
         testing::coded_plan(model, {.scope = scope, .coefficients = {0, 0, 3, 0, 25}}).coded) {
      if (block.first_layer == layer) {
        plan.coded.push_back(block);
      }
    }
  };
  blocks(CodedScope::kHead, 3);
  blocks(CodedScope::kLayer, 5);
  plan.fused = {
      {.layer = 4, .form = FusionForm::kChannel, .key_sources = {0}, .value_sources = {0}}};
  plan.layers = {KvSource::kPlain, KvSource::kLatent, KvSource::kLatent,
                 KvSource::kCoded, KvSource::kFused,  KvSource::kCoded};
  plan.check();
  return plan;
}

KvPlan merging_plan(const SyntheticCheckpoint& model, double target) {
  CompressionSettings policy = testing::small_policy(MergeRule::kLs);
  policy.target_kept_ratio = target;
  return plan_of_every_kind(model, testing::grouped_plan(model, 2, 40, policy));
}

// A block of latents is decided after the prompt and in the steps, and a second tile is made in them.
TEST(GpuMixed, LayersOfEveryKindAreTheEngines) {
  for (const char* model_type : {"llama", "qwen3"}) {
    const SyntheticCheckpoint model = model_of_every_kind(model_type);
    expect_gpu_steps({.model = model,
                      .plan = merging_plan(model, 0.55),
                      .prompt = 70,
                      .longest = 80,
                      .num_steps = 6});
  }
}

TEST(GpuMixed, DirectionsStandBesideCodes) {
  for (const LatentBasis basis : {LatentBasis::kCalibrated, LatentBasis::kRequest}) {
    const SyntheticCheckpoint model = model_of_every_kind("llama");
    const KvPlan plan =
        plan_of_every_kind(model, testing::principal_plan(model, 2, basis, false, 8, 16));
    expect_gpu_steps({.model = model, .plan = plan, .prompt = 70, .longest = 80, .num_steps = 6});
  }
}

// Plain layers, and what fused ones read of them, become codes. All tokens merge, whatever the latents take.
TEST(GpuMixed, PlainLayersHaveIntegersBesideTheOthers) {
  for (const char* model_type : {"llama", "qwen3"}) {
    const SyntheticCheckpoint model = model_of_every_kind(model_type);
    expect_gpu_steps({.model = model,
                      .plan = merging_plan(model, 0.05),
                      .prompt = 70,
                      .longest = 80,
                      .num_steps = 6,
                      .kv_dtype = KvDtype::kInt8});
  }
}

// Mistral's window begins among the codes.
TEST(GpuMixed, FusedLayersReadIntegers) {
  for (const char* model_type : {"llama", "mistral"}) {
    for (const int sources : {1, 2}) {
      SyntheticCheckpoint model = tiny_gpu_model(model_type);
      model.num_layers = 4;
      model.window = 150;
      expect_gpu_steps({.model = model,
                        .plan = testing::fused_upper_plan(model, FusionForm::kChannel, sources),
                        .prompt = 190,
                        .longest = 200,
                        .num_steps = 7,
                        .kv_dtype = sources == 1 ? KvDtype::kInt4 : KvDtype::kInt8});
    }
  }
}

// Generation, samples included; forecasts bound what is taken.
TEST(GpuMixed, GeneratesTheEnginesTokens) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  const SyntheticCheckpoint model = model_of_every_kind("llama");
  testing::write_factored_checkpoint(directory.path(), model, merging_plan(model, 0.2));
  const Engine::Ids prompts = {testing::gpu_text(69, 1), testing::gpu_text(6, 5)};
  GenerateOptions options;
  options.max_new_tokens = 7;
  options.num_samples = 2;
  for (const char* kv_dtype : {"float16", "int8"}) {
    const GpuEngine engine = testing::emulated_engine(directory.path(), kv_dtype);
    const auto [expected, result] =
        testing::expect_same_tokens(directory.path(), engine, prompts, options);
    ASSERT_EQ(result.sequences.size(), 4u);
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      bytes += result.sequences[i].bytes.total();
      EXPECT_EQ(result.sequences[i].bytes.coded > 0, i < 2);
      EXPECT_EQ(result.sequences[i].bytes.merged > 0, i < 2);
      EXPECT_GT(result.sequences[i].bytes.plain, 0);
    }
    EXPECT_LE(bytes, engine.kv_peak_bytes());
    EXPECT_LE(engine.kv_peak_bytes(),
              gpu_cache_bytes(engine.plan(), engine.kv_dtype(), 32, {69, 69, 6, 6}, 7));
  }
}

// Beams that continue another take copies of what every kind holds.
TEST(GpuMixed, FindsTheEnginesBeams) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  const SyntheticCheckpoint model = model_of_every_kind("llama");
  testing::write_factored_checkpoint(directory.path(), model, merging_plan(model, 0.2));
  GenerateOptions options;
  options.max_new_tokens = 5;
  options.num_beams = options.num_samples = 3;
  const GpuEngine engine = testing::emulated_engine(directory.path());
  testing::expect_same_tokens(directory.path(), engine, {testing::gpu_text(71, 1)}, options);
  EXPECT_LE(engine.kv_peak_bytes(),
            gpu_cache_bytes(engine.plan(), KvDtype::kFloat16, 32, {71, 71, 71}, 5));
}

}  // namespace
}  // namespace kvc
