// Generation on the GPU without one: prompts through LibTorch on the CPU, steps in the emulator, against the CPU's
// engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "runtime/gpu/gpu_engine.h"
#include "runtime/gpu/gpu_forecast.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/gpu_fixture.h"
#include "tests/testing/error_of.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"

namespace kvc {
namespace {

using testing::emulated;
using testing::options_of;
using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;

class GpuEngineTest : public testing::TinyGpuModel {
 protected:
  GpuEngine load(const EngineOptions& options = {}) const {
    return GpuEngine::load(directory_.path(), options, emulated());
  }
};

TEST_F(GpuEngineTest, GeneratesTheEnginesTokens) {
  EngineOptions wide;
  wide.dtype = "float32";
  const Engine reference = Engine::load(directory_.path(), wide);
  const Engine::Ids prompts = {testing::gpu_text(20, 1), testing::gpu_text(6, 5)};
  const GenerateResult expected = generate(reference, prompts, options_of(6));
  const GpuEngine engine = load();
  const GenerateResult result = engine.generate(prompts, options_of(6));
  ASSERT_EQ(result.sequences.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(result.sequences[i].tokens, expected.sequences[i].tokens);
    EXPECT_EQ(result.sequences[i].num_tokens, expected.sequences[i].num_tokens);
    EXPECT_EQ(result.sequences[i].bytes.total(),
              2 * plain_layer_bytes(engine.plan(), static_cast<std::int64_t>(prompts[i].size()) + 6,
                                    KvDtype::kFloat16, 32));
  }
  EXPECT_EQ(engine.weight_bytes(), Engine::load(directory_.path(), {}).weight_bytes());
}

// A launch multiplies at most 32 rows with a weight.
TEST_F(GpuEngineTest, GeneratesForMoreSequencesThanAProductHasRows) {
  const GpuEngine engine = load();
  for (const std::int64_t count : {16, 33}) {
    Engine::Ids prompts;
    for (std::int64_t i = 0; i < count; ++i) {
      prompts.push_back(testing::gpu_text(3 + i % 7, i));
    }
    const GenerateResult together = engine.generate(prompts, options_of(3));
    ASSERT_EQ(together.sequences.size(), prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(together.sequences[i].tokens,
                engine.generate({prompts[i]}, options_of(3)).sequences[0].tokens)
          << i;
    }
  }
}

TEST_F(GpuEngineTest, ReadsLongPromptsInPieces) {
  const Engine::Ids prompts = {testing::gpu_text(5000, 1)};
  ASSERT_GT(prompts[0].size(), 2 * static_cast<std::size_t>(EngineOptions{}.prefill_chunk));
  testing::expect_same_tokens(directory_.path(), load(), prompts, options_of(3));
}

TEST_F(GpuEngineTest, SamplesTheSameTokensUnderTheSameSeed) {
  GenerateOptions options = options_of(5);
  options.sampling = {.temperature = 1, .top_k = 40, .top_p = 0.95, .repetition_penalty = 1.1};
  options.num_samples = 3;
  options.seed = 5;
  const GpuEngine engine = load();
  const GenerateResult first = engine.generate({testing::gpu_text(7, 2)}, options);
  const GenerateResult second = engine.generate({testing::gpu_text(7, 2)}, options);
  options.seed = 6;
  const GenerateResult other = engine.generate({testing::gpu_text(7, 2)}, options);
  ASSERT_EQ(first.sequences.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(first.sequences[i].tokens, second.sequences[i].tokens);
  }
  EXPECT_NE(first.sequences[0].tokens, first.sequences[1].tokens);
  EXPECT_EQ(other.sequences[0].tokens,
            first.sequences[1].tokens);  // sequence i draws from seed + i
}

// Prompts of 20 and 6 tokens, of which 16 and 2 are fed as generated ones are: the shorter one generates meanwhile.
TEST_F(GpuEngineTest, ReadsTheRestOfPromptsInSteps) {
  const Engine::Ids prompts = {testing::gpu_text(20, 1), testing::gpu_text(6, 5)};
  const GpuEngine engine = load();
  for (const std::int64_t new_tokens : {0, 4}) {
    GenerateOptions options = options_of(new_tokens);
    options.prefill_tokens = 4;
    options.num_samples = 2;
    options.all_logits = true;
    const auto [expected, result] =
        testing::expect_same_tokens(directory_.path(), engine, prompts, options);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(result.sequences[i].tokens.size(), static_cast<std::size_t>(new_tokens));
      EXPECT_EQ(result.sequences[i].num_tokens, expected.sequences[i].num_tokens);
    }
    for (const std::size_t first : {0u, 2u}) {
      EXPECT_TRUE(testing::tensors_close(result.sequences[first].prompt_logits,
                                         expected.sequences[first].prompt_logits, 0.02));
    }
    EXPECT_EQ(result.timing.prefill_tokens, 26);
    EXPECT_EQ(result.timing.decode_tokens, new_tokens > 0 ? 4 * (new_tokens - 1) : 0);
    EXPECT_LE(engine.kv_peak_bytes(),
              gpu_cache_bytes(engine.plan(), KvDtype::kFloat16, 32, {4, 4, 4, 4}, 16 + new_tokens));
  }
}

TEST_F(GpuEngineTest, DrawsTheSameTokensWhateverPrefillTakes) {
  GenerateOptions options = options_of(5);
  options.sampling = {.temperature = 1, .top_k = 40, .repetition_penalty = 1.3};
  options.seed = 5;
  const GpuEngine engine = load();
  const GenerateResult whole = engine.generate({testing::gpu_text(9, 2)}, options);
  options.prefill_tokens = 3;
  const GenerateResult part = engine.generate({testing::gpu_text(9, 2)}, options);
  EXPECT_EQ(part.sequences[0].tokens, whole.sequences[0].tokens);
}

TEST_F(GpuEngineTest, FindsTheEnginesBeams) {
  const Engine::Ids prompts = {testing::gpu_text(20, 1), testing::gpu_text(6, 5)};
  const GpuEngine engine = load();
  GenerateOptions options = options_of(6);
  options.num_beams = 4;
  options.num_samples = 3;
  for (const std::int64_t prefill_tokens : {0, 4}) {
    options.prefill_tokens = prefill_tokens;
    options.stop_ids = {};
    const auto [expected, result] =
        testing::expect_same_tokens(directory_.path(), engine, prompts, options);
    ASSERT_EQ(result.sequences.size(), 6u);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(result.sequences[i].num_tokens, expected.sequences[i].num_tokens);
    }
    EXPECT_NE(result.sequences[0].tokens, result.sequences[1].tokens);
    EXPECT_EQ(result.timing.decode_tokens, expected.timing.decode_tokens);
    EXPECT_EQ(result.timing.prefill_tokens, 26);
    options.stop_ids = {result.sequences[0].tokens[2], result.sequences[3].tokens[1]};
    testing::expect_same_tokens(directory_.path(), engine, prompts, options);
  }
  options.num_samples = 5;
  EXPECT_NE(error_of([&] { engine.generate(prompts, options); }).find("search more"),
            std::string::npos);
}

TEST_F(GpuEngineTest, EndsAtStopTokensAndWhereTheVisitorSaysSo) {
  const GpuEngine engine = load();
  const Engine::Ids prompts = {testing::gpu_text(9, 4), testing::gpu_text(4, 8)};
  const GenerateResult whole = engine.generate(prompts, options_of(6));
  GenerateOptions options = options_of(6);
  options.stop_ids = {whole.sequences[0].tokens[3]};
  const GenerateResult stopped = engine.generate(prompts, options);
  const auto& all = whole.sequences[0].tokens;
  const auto end = std::find(all.begin(), all.end(), all[3]);
  EXPECT_EQ(stopped.sequences[0].tokens, std::vector<std::int64_t>(all.begin(), end));
  const GenerateResult visited =
      engine.generate(prompts, options_of(6), [](std::size_t, std::int64_t) { return false; });
  EXPECT_EQ(visited.sequences[1].tokens.size(), 1u);
}

TEST_F(GpuEngineTest, SaysWhatFitsWhereMemoryIsShort) {
  const GpuEngine engine = GpuEngine::load(directory_.path(), {}, emulated(std::int64_t{1} << 20));
  const std::string error =
      error_of([&] { engine.generate({testing::gpu_text(9, 4)}, options_of(100000)); });
  EXPECT_NE(error.find("bytes of KV cache"), std::string::npos) << error;
  const std::size_t at = error.find("--max-new-tokens ");
  ASSERT_NE(at, std::string::npos) << error;
  const std::int64_t fits = std::stoll(error.substr(at + 17));
  EXPECT_GT(fits, 0);
  EXPECT_NE(error_of([&] { engine.generate({testing::gpu_text(9, 4)}, options_of(fits + 1)); }),
            "");
  EXPECT_NE(error_of([&] {
              GpuEngine::load(directory_.path(), {}, emulated(1000));
            }).find("bytes of weights, the GPU has 1000 free"),
            std::string::npos);
}

TEST_F(GpuEngineTest, RefusesByNameWhatItDoesNotDo) {
  const auto refusal = [&](const EngineOptions& options) {
    return error_of([&] { load(options); });
  };
  EngineOptions options;
  options.dtype = "float32";
  EXPECT_NE(refusal(options).find("--dtype bfloat16"), std::string::npos);
  options.dtype = "bfloat16";
  options.kv_dtype = "int2";
  EXPECT_NE(refusal(options).find("not as int2"), std::string::npos);
  options.kv_dtype = {};
  options.policy = parse_token_policy("think");
  EXPECT_NE(refusal(options).find("--policy think"), std::string::npos);
}

TEST(GpuEngine, RefusesPlansByNameThatItDoesNotRun) {
  const SyntheticCheckpoint model = testing::tiny_gpu_model("llama");
  const auto refusal = [](const SyntheticCheckpoint& of, const KvPlan& plan,
                          const std::string& kv_dtype = {}) {
    const TemporaryDirectory directory;
    testing::write_factored_checkpoint(directory.path(), of, plan);
    EngineOptions options;
    options.dtype = "float16";
    options.kv_dtype = kv_dtype;
    return error_of([&] { GpuEngine::load(directory.path(), options, emulated()); });
  };
  const auto expect = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_NE(error.find("--device cpu"), std::string::npos) << error;
  };
  KvPlan paired = plain_plan(2, model.num_kv_heads, model.head_dim);
  paired.layers.assign(2, KvSource::kPaired);
  paired.paired = PairedLayers{.first_layers = {0}};
  expect(refusal(model, paired), "layer 0 is paired");
  const CompressionSettings policy = testing::small_policy(MergeRule::kLs);
  expect(refusal(model, testing::grouped_plan(model, 2, 40, policy), "int8"),
         "--kv-dtype int8 applies to plain layers");
  expect(refusal(model, testing::grouped_plan(model, 2, 42, policy)), "--rank-multiple 32");
  SyntheticCheckpoint windows = testing::tiny_gpu_model("mistral");
  windows.window = 20;
  KvPlan request = testing::principal_plan(windows, 2, LatentBasis::kRequest, false, 32, 32);
  request.request->later = LaterTokens::kNewSegment;
  expect(refusal(windows, request), "--later project");
}

}  // namespace
}  // namespace kvc
