// Generation on the GPU under token policies, without a GPU: prompts through LibTorch on the CPU, steps in the emulator,
// against the CPU's engine under the same policy.
#include <gtest/gtest.h>

#include "runtime/gpu/gpu_engine.h"
#include "runtime/gpu/gpu_forecast.h"
#include "runtime/gpu/gpu_kept.h"
#include "runtime/program/memory_plan.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/gpu_fixture.h"
#include "tests/testing/error_of.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

using testing::emulated;
using testing::expect_same_tokens;
using testing::gpu_text;
using testing::options_of;
using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;

class GpuPolicyTest : public testing::TinyGpuModel {
 protected:
  GpuEngine engine_under(const std::string& policy, const std::string& kv_dtype = {}) const {
    EngineOptions options;
    options.dtype = "float16";
    options.kv_dtype = kv_dtype;
    options.policy = parse_token_policy(policy);
    return GpuEngine::load(directory_.path(), options, emulated());
  }
  // The CPU's tokens, of the bytes that were forecast.
  void expect_tokens(const std::string& policy, const Engine::Ids& prompts,
                     const GenerateOptions& options, const std::string& kv_dtype = {}) const {
    const GpuEngine engine = engine_under(policy, kv_dtype);
    const testing::Generations both =
        expect_same_tokens(directory_.path(), engine, prompts, options);
    std::vector<std::int64_t> lengths;
    for (const auto& prompt : prompts) {
      lengths.insert(lengths.end(), static_cast<std::size_t>(options.num_samples),
                     static_cast<std::int64_t>(prompt.size()));
    }
    EXPECT_EQ(engine.kv_peak_bytes(), gpu_cache_bytes(engine.plan(), engine.kv_dtype(), 32, lengths,
                                                      options.max_new_tokens, engine.policy()))
        << policy;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      std::int64_t bytes = 0;
      for (int layer = 0; layer < engine.plan().num_layers(); ++layer) {
        bytes += gpu_kept_bytes(engine.plan(), engine.policy(), layer, lengths[i],
                                lengths[i] + options.max_new_tokens, engine.kv_dtype(), 32);
      }
      EXPECT_EQ(both.result.sequences[i].bytes.kept, bytes) << policy;
      EXPECT_EQ(both.result.sequences[i].bytes.total(), bytes) << policy;
    }
  }
};

// The longest prompt exceeds its budget when it ends, the others' is exceeded while they generate, or never.
TEST_F(GpuPolicyTest, KeepsWithinBudgetsWhatTheCpuKeeps) {
  for (const char* policy :
       {"zeromerge:budget=12", "zeromerge:budget=14,residual=3,sink=2",
        "zeromerge:budget=14,residual=2,prefill-merge=contiguous,decode=released",
        "zeromerge:budget=12,residual=0,lambda=0.9", "h2o:budget=12", "h2o:budget=13,sink=3",
        "streamingllm:sink=2,window=9"}) {
    SCOPED_TRACE(policy);
    expect_tokens(policy, {gpu_text(37, 4), gpu_text(9, 8), gpu_text(12, 5), gpu_text(2, 6)},
                  options_of(9));
  }
}

// A layer's kept rows begin anywhere in a page, and may be all that there are.
TEST_F(GpuPolicyTest, KeepsWhatAPromptsLastTokensVoteFor) {
  for (const char* policy : {"snapkv:budget=21,window=5", "snapkv:budget=0.5,window=8,pool=3",
                             "pyramidkv:budget=20,window=4,beta=5"}) {
    SCOPED_TRACE(policy);
    expect_tokens(policy, {gpu_text(70, 4), gpu_text(37, 8), gpu_text(6, 5)}, options_of(6));
  }
}

// Tokens of the first prompt leave, and codes are post-RoPE; the second, under snapkv and in pyramidkv's first layer, keeps
// all, as a plain layer's codes; the third has none until it has generated.
TEST_F(GpuPolicyTest, KeepsIntegersAsTheCpuDoes) {
  for (const char* kv_dtype : {"int8", "int4"}) {
    for (const char* policy :
         {"snapkv:budget=210,window=16", "pyramidkv:budget=195,window=16,beta=1.1"}) {
      SCOPED_TRACE(policy);
      expect_tokens(policy, {gpu_text(250, 4), gpu_text(200, 8), gpu_text(140, 5)}, options_of(40),
                    kv_dtype);
    }
  }
}

// The context of every sequence is codes from the prompt's end on; sinks and ring are 16-bit numbers.
TEST_F(GpuPolicyTest, KeepsAContextOfIntegersAsTheCpuDoes) {
  const Engine::Ids prompts = {gpu_text(70, 4), gpu_text(61, 8)};
  for (const char* kv_dtype : {"int8", "int4"}) {
    for (const char* policy : {"zeromerge:budget=0.5", "zeromerge:budget=40,residual=3,sink=2",
                               "zeromerge:budget=40,decode=released", "h2o:budget=48,sink=3",
                               "streamingllm:sink=2,window=9"}) {
      SCOPED_TRACE(policy);
      expect_tokens(policy, prompts, options_of(12), kv_dtype);
    }
  }
}

TEST_F(GpuPolicyTest, RefusesIntegersOfPromptsWithinTheBudget) {
  const GpuEngine engine = engine_under("h2o:budget=40", "int8");
  const std::string error = error_of([&] {
    engine.generate({gpu_text(70, 4), gpu_text(40, 8)}, options_of(2));
  });
  EXPECT_NE(error.find("of 40 tokens; one has 40"), std::string::npos) << error;
  EXPECT_NE(error.find("--device cpu"), std::string::npos) << error;
}

TEST_F(GpuPolicyTest, CopiesIntegersToSamplesAndBeams) {
  const char* policy = "snapkv:budget=180,window=16";
  GenerateOptions options = options_of(20);
  options.num_samples = 2;
  expect_tokens(policy, {gpu_text(200, 4), gpu_text(150, 6)}, options, "int8");
  options.num_samples = 1;
  options.num_beams = 2;
  expect_same_tokens(directory_.path(), engine_under(policy, "int4"), {gpu_text(200, 4)}, options);
}

TEST_F(GpuPolicyTest, KeepsTheFullCachesTokensWithinTheBudget) {
  const Engine::Ids prompts = {gpu_text(30, 4), gpu_text(7, 8)};
  const GenerateResult full = engine_under("full").generate(prompts, options_of(5));
  for (const char* policy : {"zeromerge:budget=35", "h2o:budget=40", "streamingllm:window=32",
                             "snapkv:budget=64", "pyramidkv:budget=64"}) {
    const GenerateResult kept = engine_under(policy).generate(prompts, options_of(5));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(kept.sequences[i].tokens, full.sequences[i].tokens) << policy;
    }
  }
}

// Enough rows for several blocks of the attention to share them.
TEST_F(GpuPolicyTest, SharesTheRowsOfALargeBudget) {
  expect_tokens("zeromerge:budget=300,sink=4", {gpu_text(330, 4)}, options_of(4));
}

TEST_F(GpuPolicyTest, ReadsPromptsInPiecesOfModelsWithNormsAndBiases) {
  for (const char* model_type : {"qwen3", "qwen2"}) {
    const TemporaryDirectory directory;
    testing::write_synthetic_checkpoint(directory.path(), testing::tiny_gpu_model(model_type));
    EngineOptions options;
    options.dtype = "float16";
    options.prefill_chunk = 11;
    for (const char* policy :
         {"zeromerge:budget=0.5", "h2o:budget=0.4", "snapkv:budget=20,window=14"}) {
      SCOPED_TRACE(policy);
      options.policy = parse_token_policy(policy);
      const GpuEngine engine = GpuEngine::load(directory.path(), options, emulated());
      expect_same_tokens(directory.path(), engine, {gpu_text(37, 4), gpu_text(11, 3)},
                         options_of(5));
    }
  }
}

TEST_F(GpuPolicyTest, ReadsTheRestOfPromptsWithWhatIsKept) {
  GenerateOptions options = options_of(4);
  options.prefill_tokens = 16;
  for (const char* policy :
       {"zeromerge:budget=12", "zeromerge:budget=18", "snapkv:budget=10,window=4"}) {
    SCOPED_TRACE(policy);
    expect_same_tokens(directory_.path(), engine_under(policy), {gpu_text(22, 4), gpu_text(18, 3)},
                       options);
  }
}

TEST_F(GpuPolicyTest, SamplesOfAPromptBeginWithWhatItKeeps) {
  GenerateOptions options = options_of(5);
  options.sampling = {.temperature = 1, .top_k = 40};
  options.num_samples = 2;
  for (const char* policy : {"zeromerge:budget=12", "snapkv:budget=12,window=4"}) {
    const GpuEngine engine = engine_under(policy);
    options.seed = 5;
    const GenerateResult first = engine.generate({gpu_text(37, 2)}, options);
    options.seed = 6;
    const GenerateResult second = engine.generate({gpu_text(37, 2)}, options);
    EXPECT_EQ(first.sequences[1].tokens, second.sequences[0].tokens) << policy;
    EXPECT_NE(first.sequences[0].tokens, first.sequences[1].tokens) << policy;
  }
}

TEST_F(GpuPolicyTest, TakesTheSameBytesHoweverLongTheTextGrows) {
  const KvPlan plan = plain_plan(2, 2, 32);
  for (const char* text : {"zeromerge:budget=100,residual=2", "h2o:budget=100", "streamingllm"}) {
    const TokenPolicy policy = parse_token_policy(text);
    const auto bytes = [&](std::int64_t length, std::int64_t capacity) {
      return gpu_kept_bytes(plan, policy, 0, length, capacity, KvDtype::kFloat16, 32);
    };
    EXPECT_EQ(bytes(2000, 2010), bytes(9000, 50000)) << text;
    EXPECT_EQ(bytes(50, 2010), bytes(60, 50000)) << text;
  }
  // 94 rows of 2 heads' keys, values, scores and positions; a slot's 2 * 32 numbers and its count.
  EXPECT_EQ(gpu_kept_bytes(plan, parse_token_policy("zeromerge:budget=96,residual=2"), 0, 500, 600,
                           KvDtype::kFloat16, 32),
            94 * 2 * (2 * 32 * 2 + 8) + 2 * 2 * 65 * 4);
}

TEST_F(GpuPolicyTest, SearchesBeamsOfWhatIsKept) {
  GenerateOptions options = options_of(4);
  options.num_beams = 2;
  for (const char* policy : {"zeromerge:budget=12", "snapkv:budget=12,window=4"}) {
    SCOPED_TRACE(policy);
    expect_same_tokens(directory_.path(), engine_under(policy), {gpu_text(30, 4)}, options);
  }
}

TEST_F(GpuPolicyTest, PlansTheBytesThatARunTakes) {
  RunOptions options;
  options.model = directory_.path();
  options.engine.dtype = "float16";
  options.generate = options_of(5);
  options.generate.prefill_tokens = 35;
  Prompts prompts;
  prompts.ids = {gpu_text(37, 4), gpu_text(9, 8)};
  for (const char* policy : {"full", "zeromerge:budget=12", "snapkv:budget=12,window=4"}) {
    SCOPED_TRACE(policy);
    options.engine.policy = parse_token_policy(policy);
    options.engine.memory_bytes = {};
    const Json plan = to_json(gpu_memory_plan(options, prompts));
    const GpuEngine engine = engine_under(policy);
    const GenerateResult result = engine.generate(prompts.ids, options.generate);
    EXPECT_EQ(plan["reading_bytes"].get<std::int64_t>(), engine.kv_peak_bytes());
    EXPECT_EQ(plan["end_bytes"].get<std::int64_t>(),
              result.sequences[0].bytes.total() + result.sequences[1].bytes.total());
    EXPECT_EQ(plan["tokens"].get<std::int64_t>(), 37 + 9 + 2 * 4);
    options.engine.memory_bytes = engine.kv_peak_bytes() - 1;
    EXPECT_NE(error_of([&] { gpu_memory_plan(options, prompts); }).find("--memory"),
              std::string::npos);
  }
}

TEST_F(GpuPolicyTest, RefusesByNameWhatItDoesNotDo) {
  const TemporaryDirectory converted;
  const SyntheticCheckpoint model = testing::tiny_gpu_model("llama");
  testing::write_factored_checkpoint(
      converted.path(), model,
      testing::grouped_plan(model, 2, 40, testing::small_policy(MergeRule::kLs)));
  const auto refusal = [&](const std::string& policy, const std::string& kv_dtype = {},
                           bool is_converted = false) {
    EngineOptions options;
    options.dtype = "float16";
    options.kv_dtype = kv_dtype;
    options.policy = parse_token_policy(policy);
    const auto& checkpoint = is_converted ? converted : directory_;
    return error_of([&] { GpuEngine::load(checkpoint.path(), options, emulated()); });
  };
  const auto expect = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_NE(error.find("--device cpu"), std::string::npos) << error;
  };
  expect(refusal("think"), "--policy think");
  EXPECT_EQ(refusal("zeromerge", "int8"), "");
  EXPECT_EQ(refusal("snapkv", "int4"), "");
  expect(refusal("h2o:compress-at=chunk"), "use compress-at=end");
  expect(refusal("streamingllm:pos=cache"), "use pos=true");
  expect(refusal("zeromerge", {}, true), "2 of 2 layers are converted");
}

}  // namespace
}  // namespace kvc
